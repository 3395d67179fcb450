"""Makes small documents of the formats that `ask` reads, from the bytes up: no other program is needed."""
import io
import zipfile

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
ODF = ('xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
       'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"')


def zipped(members, compression=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def docx(body, prolog=""):
    """body: what stands in <w:body>."""
    document = f'<?xml version="1.0" encoding="UTF-8"?>{prolog}<w:document {W}><w:body>{body}</w:body></w:document>'
    return zipped({"[Content_Types].xml": "<Types/>", "word/document.xml": document, "word/styles.xml": "<none/>"})


def odt(body):
    content = f'<?xml version="1.0"?><office:document-content {ODF}><office:body><office:text>{body}</office:text></office:body></office:document-content>'
    return zipped({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content})


def epub(*pages, names=None, members=None):
    """names: as the list of parts has them; members: where they lie in the archive."""
    places = members
    names = names or [f"part{i}.xhtml" for i in range(len(pages))]
    items = "".join(f'<item id="p{i}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"/>' for i, name in enumerate(names))
    spine = "".join(f'<itemref idref="p{i}"/>' for i in range(len(pages)))
    members = {"mimetype": "application/epub+zip",
               "META-INF/container.xml": '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
               "OEBPS/book.opf": f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>"}
    # In the archive the pages lie in another order than they are read in.
    members.update({name: page for name, page in reversed(list(zip(places or [f"OEBPS/{name}" for name in names], pages)))})
    return zipped(members)


def pdf(*pages):
    """Each page is a line of text, in Helvetica."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
               "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    for i, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects += [f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * i} 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
                    f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream"]
    out, places = b"%PDF-1.4\n", []
    for i, content in enumerate(objects, 1):
        places.append(len(out))
        out += f"{i} 0 obj\n{content}\nendobj\n".encode()
    xref = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode() + b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{xref}\n%%EOF\n".encode()
