"""Names, things and sentences the generated tasks are made of. All of it is written here or put together here from parts; nothing comes from an evaluation set."""

PEOPLE = """Abel Ada Agnes Alban Alma Alvin Amos Anselm Arlo Astrid Barnaby Basil Beatrix Bertram Bianca Bram Bridget Caleb Camille Carmen Cecil Clara Clement
Conrad Cora Dagmar Dario Delia Dexter Dora Edgar Edith Effie Egon Elias Elke Elmer Elsa Emil Enid Erwin Esther Eunice Ezra Fabian Felix Fergus Fiona Flora
Floyd Frieda Gaston Gerda Gideon Gilbert Greta Gunnar Gus Hattie Hector Heidi Helga Henrik Hilda Hiram Horace Hugo Ida Igor Imogen Ines Ingrid Ira Irma
Isidor Ivan Ivy Jasper Jemima Joachim Jonas Judith Julius Karin Kaspar Keith Klara Konrad Lars Laura Leander Lena Leopold Lila Linus Lotte Lucian Ludwig
Lydia Mabel Magnus Malcolm Marek Marta Matilda Maud Max Melvin Mildred Milo Mina Miriam Mona Moritz Muriel Nadia Nell Nestor Nils Nina Nora Norbert Odette
Olaf Olga Olive Orson Oscar Osmond Otto Pamela Pascal Pearl Percy Petra Philip Phoebe Pia Quentin Rafael Ralph Ramona Regina Rhoda Roland Rolf Rosa Rufus
Ruth Sabine Salome Samson Selma Seth Sigrid Silas Silvia Simeon Stella Sven Sybil Tabitha Tamara Tessa Thea Theodor Tilda Titus Tobias Trudy Ulric Una Ursula
Valerie Vera Verner Victor Viola Wallace Walter Wanda Wendell Wilma Winifred Xaver Yvonne Zelda Zeno""".split()

SURNAMES = """Abbot Ackroyd Alder Ansty Archer Ashby Bagley Barlow Barrow Beck Birch Blount Bolton Bracken Brandt Brook Burke Calder Carver Chandler Cooper Crane
Croft Dale Darby Denholm Dray Drummond Eaton Elwood Falk Farrow Fenn Fisher Fletcher Foss Frost Garland Gibb Granger Groves Hale Harrow Hartley Hobbs Holm Hooper
Howe Huxley Ibsen Jessop Kemp Kerr Kirk Knapp Lane Larch Latham Lund Marsh Mercer Mill Moss Nash North Oakes Orchard Parr Peel Pike Platt Quill Ramsey Reed Rigby
Rowe Sawyer Seward Shaw Slater Snow Stone Swann Tanner Thorne Tyler Vance Vaughn Wade Ward Webb Wells Wilder Wren Yates York""".split()

THINGS = """lantern compass ledger violin kettle saddle anchor telescope umbrella candlestick hammer mirror teapot barrel basket blanket bonnet bottle bracelet brooch
bucket cabinet carpet chisel clock coat crown cushion dagger drum fiddle flag flute globe goblet harp helmet hourglass inkwell jug ladder locket loom map mask medal
needle oar organ painting parcel pendant piano pipe plough purse quilt rake ribbon ring rope sail scarf scissors shield shovel sickle sledge spade spoon stool sword
tapestry thimble trumpet trunk vase wagon wallet whistle wig""".split()

COLOURS = "amber azure black blue bronze brown copper crimson golden green grey indigo ivory pale purple red russet scarlet silver white yellow".split()

# Invented places: (start, middle, end) in any combination, and plain compounds.
PLACE_A = """bar bel bor bran cal cor dor dun fal fen gar gol hal hol jor kal kel kor lam lor mar mel mor nor ol or pel quor ram ros sar sel tar til tor ul ur val var
wes yar zan bri cla dre fri gra kro pli sku tri vro""".split()
PLACE_B = "a e i o u an ar el en er il in ol on or u ab ed im os ut".split()
PLACE_C = """bach beck berg borg bury by combe dale don dorf ette fell field ford gard gate ham heim hurst kirk lach land ley lin low mark mere mond mont mouth nock
noch pool port rath rick rood scar sted stoke thorpe toft ton vik wald wall wick wold worth""".split()
COMPOUND_A = """alder apple arrow ash barley beaver birch bitter black bracken brick bridge broad bull candle castle chalk cherry clay clover coal corn cotton crab
cross crow dark deer dove eagle elm fair falcon far fern fiddle fish flint fox goose grain green hare hawk hay hazel heron high honey horn hound ink iron ivy king
lamb lark leather lime linden lion long low maple marble meadow milk mill moss needle new oak oat old otter owl ox peach pear pepper pigeon pine plum poppy quick
rabbit raven red reed river rook rose rye salmon salt sand seal sheep short silk sparrow steep stone stork straw sugar swallow swan swift thistle timber tin wheat
white wild willow wolf wood wool yarrow yew""".split()
COMPOUND_B = """abbey acre bank barn bend bottom brook burn chapel church cliff close copse corner cote court croft cross dam dean den ditch end farm ferry field ford
fork furrow garden gate green hall heath hedge hill hold hook house island keep knoll lake landing lane lock lodge manor market marsh meadow mill moat moor mount
orchard park pass path peak pit place point pond pool quarry quay reach ridge rise road rock shore side spring square stead stile strand stream street tower town
vale view village wall warren watch water way weir well wharf yard""".split()

PLANTED_SPOTS = """behind the mill|under the old bridge|in the church tower|beside the well|in the attic|below the stairs|in the boat house|at the inn|in the bakery|near
the lighthouse|in the stable|under the oak|in the library|at the station|in the cellar|behind the forge|in the school|at the market|in the kitchen|beyond the
orchard|in the museum|by the harbour|in the theatre|at the bank|inside the chapel|on the roof|in the garden shed|at the tailor's shop|in the clock tower|at the
post office""".replace("\n", " ").split("|")

# Filler of short sentences said again and again, the way passkey texts are commonly padded.
FILLER = """The road runs along the river.|A cart went by an hour ago.|Rain is falling on the hills.|Somebody has left the gate open.|The bread is still warm.|Two dogs
sleep by the fire.|We shall wait for the evening train.|The clock on the wall has stopped.|Leaves cover the path again.|Nothing has changed since Monday.|The
boats come back at noon.|A letter lies on the table.|Smoke rises from the chimney.|The children are counting stones.|There is snow on the far mountains.|The
lamp was lit at six.|Nobody spoke for a while.|The market opens early.|Her brother mends the nets.|The wind turned to the north.|On we walk and back we come.|The
tea is on the stove.|Birds gather on the roof.|The field is yellow with mustard.|It was a quiet sort of day.|The ferry leaves every hour.|One candle is
enough.|The baker whistles at his work.|They painted the fence white.|The pond froze in the night.""".replace("\n", " ").split("|")

# Places described: a feature as the description says it and as the question says it later.
FEATURES = [(f"{a} {n}", f"{a} {n}") for a in
            "crooked moss-covered copper-roofed half-sunken whitewashed ivy-clad steaming frozen terraced wind-bent salt-crusted painted narrow floating ruined echoing".split()
            for n in "towers bridges vineyards windmills harbours staircases gardens fountains chimneys cliffs orchards canals chapels reed beds hot springs markets".replace(
                "reed beds", "reedbeds").replace("hot springs", "springs").split()]
FEATURES += [(f"{n} {p}", f"{n} {q}") for n in
             "lanterns herons bells kites goats fishermen weavers potters moths beehives foxes peacocks mirrors barges ferns glass orbs".replace("glass orbs", "orbs").split()
             for p, q in (("that wake at dusk", "waking at dusk"), ("that nobody owns", "owned by nobody"), ("turning slowly in the mist", "that turn in the mist"),
                          ("lined up along the shore", "along its shore"), ("older than the oldest songs", "older than any song"),
                          ("singing under the ice", "that sing beneath ice"), ("as bright as embers", "bright as embers"))]
OPENINGS = """High above the timber line,|Where two slow rivers meet,|At the far end of a causeway,|Behind seven locked gates,|Three days' ride from the last inn,|In the
crater of a sleeping volcano,|On an island of black sand,|Down in the warm dark of a cavern,|Along a coast of broken slate,|In a valley the sun visits once a
year,|Past the last milestone,|Between the salt flats and the sea,|Deep within an ancient forest,|Under a sky of drifting ash and gold,|At the edge of the tundra,|Beside
a lake without a bottom,|Wrapped in a cloud that never lifts,|Raised on stilts over the marsh,|Hidden beneath a waterfall,|Carved into a wall of red
stone,""".replace("\n", " ").split("|")
SEEN = """a traveller finds {a} and {b}|lie {a}, and between them {b}|there are {a} beside {b}|you will see {a} before you see {b}|the first thing anyone notices is {a},
then {b}|{a} keep company with {b}|the people live among {a} and {b}|pilgrims come to look at {a} and {b}""".replace("\n", " ").split("|")
AFTER = """Its people speak softly and trade in amber.|Old maps leave it blank.|The air there smells of resin and rain.|At night the stones give back the warmth of the day.|A
low hum fills the streets until morning.|Visitors forget what hour it is.|Every door is a different colour.|It is said that no one leaves by the way they came.|Even
the shadows seem to listen there.|Strange light lingers long after sunset, soft as breath.|The silence is broken only by water.|Children there learn
to swim before they walk.""".replace("\n", " ").split("|")
KINDS = "place location town region realm settlement haven spot country city valley land sanctuary retreat destination".split()
ASK_PLACE = """What {k} has {a} and {b}?|Which {k} is known for {a} and {b}?|Which {k} has {a}?|What {k} is known for {b}?|In which {k} are there {b}?|What remarkable {k}
features {a} alongside {b}?|Which {k} is home to {a}?|What {k} would you visit to see {b} and {a}?|Which hidden {k} boasts {a}, with {b} nearby?""".replace("\n", " ").split("|")

IDEAS = "freedom memory silence doubt beauty time courage justice solitude hope labour grief truth habit laughter knowledge desire patience power friendship".split()
THOUGHTS = """{P} used to say that {x} is only {y} seen from far away, and that whoever looks for one will stumble over the other.|Perhaps {x} begins where {y} ends; so,
at least, wrote {P}, who had little of either.|To ask what {x} means is already to give up some of one's {y}.|In the manner of {P} one could answer: without {y} there is no
{x}, and without {x} nobody would miss {y}.|"{X}," wrote {P}, "is the lamp by which {y} reads its own handwriting."|If {x} were a house, {y} would be its unlocked door, and we
would still climb in through the window.""".replace("\n", " ").split("|")
FOODS = "barley soup|baked trout|plum dumplings|lentil stew|onion tart|roast chestnuts|pickled beans|rye bread|mushroom pie|lamb broth|honey cake|fried squash".split("|")
TASTES = "thyme|smoked paprika|lemon peel|brown butter|black pepper|fennel|mustard seed|sour cream|juniper|toasted walnuts|mint|caraway|saffron|garlic".split("|")
MEALS = """A bowl of {f} arrives with {s} and {t}, hot enough to fog the windows.|Her {f}, rich with {s}, is served on a wooden board beside a dish of {g}.|The secret of good {f}
is {s}; the rest is patience, {t} and a heavy pan.|First came {f} scented with {s}, then {g} under a crust of {t}, and nobody spoke until the plates were empty.|In the mountains they
eat {f} with {t} on feast days, and the kitchens smell of {s} for a week.""".replace("\n", " ").split("|")
SUMS = """Take {a}, add {b} and take away {c}: what remains is {r}, since {a} and {b} make {ab}.|Is {a} + {b} - {c} equal to {r}? Yes, for {a} + {b} = {ab}, and {ab} - {c} = {r}.|A
shop had {a} jars, bought {b} more and sold {c}, which leaves {r}.|{a} plus {b} gives {ab}; less {c} that is {r}.""".replace("\n", " ").split("|")
JOINS = [". ", ".. ", " ", "\n", "\n\n", ". "]
