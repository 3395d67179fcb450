"""Trains the default model by the stages of recipe.json, on the CPU or on CUDA, half on books and half on generated retrieval tasks.

It may be stopped at any time (SIGINT, SIGTERM, power): it goes on from the last checkpoint, and stages edited in the recipe meanwhile count from there.
"""
import argparse
import json
import os
import queue
import signal
import threading
import time

import numpy as np
import torch
from tokenizers import Tokenizer

from model import Config, Llama
from tasks import ANSWER, KINDS, Tasks, Text, common_words
from wire import Reserved, lay

N_KINDS = len(KINDS)                                            # kinds of task, counted apart in the log


class Muon(torch.optim.Optimizer):
    """Momentum whose step is replaced by the nearest orthogonal matrix (Newton-Schulz, five rounds): Jordan et al. 2024. Matrices only."""

    def __init__(self, params, lr, momentum=0.95, decay=0.05):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))

    @staticmethod
    def orthogonal(g):
        a, b, c = 3.4445, -4.7750, 2.0315
        x = g.bfloat16()
        tall = x.shape[-2] > x.shape[-1]
        if tall:
            x = x.mT
        x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
        for _ in range(5):
            s = x @ x.mT
            x = a * x + (b * s + c * s @ s) @ x
        return x.mT if tall else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - group["momentum"])
                shapes.setdefault(p.shape, []).append((p, p.grad.lerp(state["m"], group["momentum"])))
            for shape, items in shapes.items():
                update = self.orthogonal(torch.stack([u for _, u in items])).float()
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for (p, _), u in zip(items, update):
                    p.sub_(p.clamp(-1, 1), alpha=group["lr"] * group["decay"]).add_(u, alpha=-scale)   # what was laid by hand is too large to decay


class Batches:
    """Makes batches ahead in a thread: [rows, n + 1] tokens, weights of the targets, positions, and which rows are tasks."""

    def __init__(self, prep, seed):
        self.tok = Tokenizer.from_file(os.path.join(prep, "tokenizer.json"))
        self.books = np.load(os.path.join(prep, "books.npy"), mmap_mode="r")
        self.modern = np.load(os.path.join(prep, "modern.npy"), mmap_mode="r")
        text = Text(self.tok, self.books)
        self.rng = np.random.default_rng(seed)
        self.tasks = Tasks(self.tok, text, common_words(self.tok, self.books), seed + 1)
        self.bos, self.eos = self.tok.token_to_id("<|bos|>"), self.tok.token_to_id("<|eos|>")
        self.queue = queue.Queue(3)
        self.thread = None

    def positions(self, n, span):
        """Ascending positions with a few jumps, up to `span`: far distances are met in short sequences (positional skipping)."""
        pos = np.arange(n)
        room = span - n
        if room <= 0:
            return pos
        jumps = int(self.rng.integers(1, 9))
        total = int(room * self.rng.random())
        sizes = self.rng.dirichlet(np.ones(jumps)) * total
        for at, size in zip(self.rng.integers(1, n, jumps), sizes):
            pos[at:] += int(size)
        return pos

    def make(self, stage):
        n, rows = stage["seq"], stage["rows"]
        n_tasks = int(np.floor(rows * stage["tasks"] + self.rng.random()))
        ids, weights, pos = np.empty((rows, n + 1), np.int64), np.ones((rows, n), np.float32), np.empty((rows, n), np.int64)
        kinds = np.full((n_tasks, n), -1)
        for r in range(rows):
            if r < n_tasks:
                ids[r], w, k = self.tasks.sequence(n, self.bos, self.eos)
                weights[r], kinds[r] = w[1:], k[1:]
            else:
                src = self.modern if self.rng.random() < 0.08 else self.books
                at = int(self.rng.integers(0, len(src) - n - 1))
                ids[r] = src[at:at + n + 1]
                ids[r, 0] = self.bos
            far = self.rng.random() < stage.get("skip", 0.5 if r < n_tasks else 0.25)
            pos[r] = self.positions(n, stage.get("span", 16384) if far else n)
        return tuple(torch.from_numpy(x) for x in (ids, weights, pos)) + (n_tasks, kinds)

    def start(self, stage):
        stop = threading.Event()
        self.stop_last()
        self.tasks.kinds = dict(self.tasks.all_kinds, **stage.get("kinds", {}))
        self.queue = q = queue.Queue(3)

        def work():
            while not stop.is_set():
                item = self.make(stage)
                while not stop.is_set():
                    try:
                        q.put(item, timeout=0.5)
                        break
                    except queue.Full:
                        pass

        self.thread, self.stop = threading.Thread(target=work, daemon=True), stop
        self.thread.start()

    def stop_last(self):
        if self.thread:
            self.stop.set()
            self.thread.join()


def draw_curve(log_path, out):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    rows = [json.loads(line) for line in open(log_path)]
    if len(rows) < 3:
        return
    x = [r["tokens"] / 1e6 for r in rows]
    fig, (a, b) = plt.subplots(2, 1, figsize=(9, 7), sharex=True)
    book = [r["book"] or float("nan") for r in rows]             # long rows are few: in some spans none was a book
    a.plot(x, book, label="book text")
    a.set_ylabel("loss, nats a token")
    a.set_ylim(np.nanmin(book) - 0.2, 6)
    a.legend()
    b.plot(x, [r["answer"] for r in rows], label="answers: loss")
    b.plot(x, [r["right"] for r in rows], label="answers: share of tokens with p > ½")
    b.set_xlabel("million tokens")
    b.legend()
    last = None
    for r in rows:
        if r["stage"] != last:
            for ax in (a, b):
                ax.axvline(r["tokens"] / 1e6, color="0.8", lw=0.8)
            b.text(r["tokens"] / 1e6, b.get_ylim()[1], r["stage"], fontsize=7, va="bottom", rotation=20)
            last = r["stage"]
    fig.tight_layout()
    fig.savefig(out, dpi=80)
    plt.close(fig)


def gradients(model, batch, parts, device):
    """Adds 1/parts of one batch's gradient to the parameters'; returns book loss, book tokens, answer loss, answer tokens, answer tokens with p > 1/2,
    then for each kind of task its answer tokens with p > 1/2 and all of them."""
    ids, w, pos, n_tasks, kinds = batch
    ids, w, pos = (x.to(device) for x in (ids, w, pos))
    total, losses = model.loss(ids[:, :-1], ids[:, 1:], w / w.sum(), pos)
    (total / parts).backward()
    losses = losses.view(w.shape)
    answers = w[:n_tasks] == ANSWER
    book, hit = losses[n_tasks:], losses[:n_tasks][answers]
    kind, known = kinds[answers.cpu().numpy()], (hit < 0.6931).cpu().numpy()
    by_kind = [x for k in range(N_KINDS) for x in (known[kind == k].sum(), (kind == k).sum())]
    return np.array([float(book.sum()), book.numel(), float(hit.sum()), hit.numel(), known.sum()] + by_kind, float)


def worker(rank, model, flat, taken, pipe, args, seed):
    """One process with one thread. Takes batches of the step until all are taken, leaves its gradient in flat[rank]: a core that others use costs its share, no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    if not args.no_compile:
        model.compile()
    batches, current = Batches(args.prep, seed), None
    params = list(model.parameters())
    views, at = [], 0
    for p in params:
        views.append(flat[rank, at:at + p.numel()].view_as(p))
        p.grad = views[-1]
        at += p.numel()
    try:
        while True:
            stage = pipe.recv()
            if stage is None:
                break
            if stage != current:
                batches.start(stage)
                current = stage
            flat[rank].zero_()
            tally, parts = np.zeros(5 + 2 * N_KINDS), stage.get("accumulate", 1)
            while True:
                with taken.get_lock():
                    mine = taken.value < parts
                    taken.value += 1
                if not mine:
                    break
                tally += gradients(model, batches.queue.get(), parts, "cpu")
            pipe.send(tally)
    except EOFError:
        pass


class Workers:
    def __init__(self, model, args, seed):
        import torch.multiprocessing as mp
        ctx = mp.get_context("spawn")
        self.params = list(model.parameters())
        self.flat = torch.zeros(args.workers, sum(p.numel() for p in self.params)).share_memory_()
        self.taken, self.pipes, self.processes = ctx.Value("i", 0), [], []
        for rank in range(args.workers):
            here, there = ctx.Pipe()
            process = ctx.Process(target=worker, args=(rank, model, self.flat, self.taken, there, args, seed + 1000 * rank), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def step(self, stage):
        self.taken.value = 0
        for pipe in self.pipes:
            pipe.send(stage)
        tally = sum(pipe.recv() for pipe in self.pipes)
        total, at = self.flat.sum(0), 0
        for p in self.params:
            p.grad = total[at:at + p.numel()].view_as(p)
            at += p.numel()
        return tally

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
            process.kill()                                     # they ignore SIGTERM, so that a stop reaches the checkpoint first


class Trainer:
    def __init__(self, args):
        self.args = args
        with open(args.recipe) as f:
            self.recipe, self.read = json.load(f), os.path.getmtime(args.recipe)
        torch.manual_seed(self.recipe["seed"])
        if args.threads:
            torch.set_num_threads(args.threads)
        self.cfg = Config(**self.recipe["model"])
        self.model = Llama(self.cfg).to(args.device)
        if self.recipe.get("lay"):
            lay(self.model, Tokenizer.from_file(os.path.join(args.prep, "tokenizer.json")).token_to_id("<|bos|>"))
        self.slow = Reserved(self.model, self.recipe["reserved_rate"]) if "reserved_rate" in self.recipe else None
        self.model.to(args.device)
        matrices = [p for b in self.model.blocks for p in (b.q, b.k, b.v, b.o, b.gate, b.up, b.down)]
        norms = [p for n, p in self.model.named_parameters() if "norm" in n]
        self.muon = Muon(matrices, lr=self.recipe["lr_matrix"])
        self.adam = torch.optim.AdamW([{"params": [self.model.embed], "lr": self.recipe["lr_embed"]}, {"params": norms, "lr": self.recipe["lr_norm"]}],
                                      betas=(0.9, 0.97), eps=1e-10, weight_decay=0.0, fused=True)
        self.base = [(g, g["lr"]) for o in (self.muon, self.adam) for g in o.param_groups]
        self.ema = {k: v.detach().clone() for k, v in self.model.named_parameters()}
        self.step = self.tokens = self.stage = self.stage_tokens = 0
        self.seconds = self.stage_seconds = 0.0
        self.quit = False
        os.makedirs(args.out, exist_ok=True)
        self.ckpt, self.log_path = os.path.join(args.out, "checkpoint.pt"), os.path.join(args.out, "log.jsonl")
        if os.path.exists(self.ckpt):
            self.load()
        self.workers = self.batches = None
        if args.workers > 1:
            self.model.share_memory()
            self.workers = Workers(self.model, args, self.recipe["seed"] + self.step)
            return
        if not args.no_compile:
            self.model.compile()
        self.batches = Batches(args.prep, self.recipe["seed"] + self.step)

    def load(self):
        s = torch.load(self.ckpt, map_location=self.args.device)
        self.model.load_state_dict(s["model"])
        self.muon.load_state_dict(s["muon"])
        self.adam.load_state_dict(s["adam"])
        self.ema = s["ema"]
        self.step, self.tokens, self.stage, self.stage_tokens, self.seconds = (s[k] for k in ("step", "tokens", "stage", "stage_tokens", "seconds"))
        self.stage_seconds = s.get("stage_seconds", 0.0)
        print(f"resumed at step {self.step}, {self.tokens / 1e6:.2f}M tokens, stage {self.stage}", flush=True)

    def save(self):
        s = dict(model=self.model.state_dict(), muon=self.muon.state_dict(), adam=self.adam.state_dict(), ema=self.ema, step=self.step, tokens=self.tokens,
                 stage=self.stage, stage_tokens=self.stage_tokens, seconds=self.seconds, stage_seconds=self.stage_seconds, config=self.cfg.to_dict())
        torch.save(s, self.ckpt + ".new")
        os.replace(self.ckpt + ".new", self.ckpt)

    def done(self, stage):
        """How much of the stage is behind us: by time where it is given in minutes, for a machine whose speed others decide, else by tokens."""
        return min(1.0, self.stage_seconds / (60 * stage["minutes"]) if "minutes" in stage else self.stage_tokens / stage["tokens"])

    def reread(self):
        """Stages may be edited while they run."""
        changed = os.path.getmtime(self.args.recipe)
        if changed != self.read:
            try:
                with open(self.args.recipe) as f:
                    self.recipe["stages"], self.read = json.load(f)["stages"], changed
            except ValueError:                                  # half written: the next look finds it whole
                pass

    def set_lr(self, stage):
        done = self.done(stage)
        a, b = stage["lr"]
        factor = (a + (b - a) * done) * min(1.0, (self.step + 1) / 60)
        for group, lr in self.base:
            group["lr"] = lr * factor
        self.muon.param_groups[0]["momentum"] = min(0.95, 0.85 + self.step / 3000)

    def one_step(self, stage):
        parts = stage.get("accumulate", 1)
        if self.workers:
            tally = self.workers.step(stage)
        else:
            tally = sum(gradients(self.model, self.batches.queue.get(), parts, self.args.device) for _ in range(parts))
        torch.nn.utils.clip_grad_norm_([self.model.embed], 1.0)
        if self.slow:
            self.slow.before()
        self.muon.step()
        self.adam.step()
        if self.slow:
            self.slow.after()
        self.model.zero_grad(set_to_none=True)
        keep = min(0.99, (self.step + 1) / (self.step + 20))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.ema.values()), [p.detach() for p in self.model.parameters()], 1 - keep)
        self.step += 1
        n = stage["rows"] * stage["seq"] * parts
        self.tokens += n
        self.stage_tokens += n
        return tally

    def report(self, stage, tally, tokens, seconds):
        rate = tokens / seconds
        part = lambda s: s["minutes"] * 60 if "minutes" in s else s["tokens"] / rate
        left = sum(map(part, self.recipe["stages"][self.stage + 1:])) + part(stage) * (1 - self.done(stage))
        row = dict(step=self.step, tokens=self.tokens, stage=stage["name"], book=tally[0] / max(1, tally[1]), answer=tally[2] / max(1, tally[3]),
                   right=tally[4] / max(1, tally[3]), tok_s=rate, seconds=self.seconds, at=time.strftime("%H:%M:%S"))
        asked = {n: round(float(tally[5 + 2 * i] / tally[6 + 2 * i]), 3) for i, n in enumerate(KINDS) if tally[6 + 2 * i]}
        row["kinds"] = asked
        with open(self.log_path, "a") as f:
            f.write(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}) + "\n")
        print(f"{row['at']} {stage['name']} step {self.step} {self.tokens / 1e6:.2f}M  book {row['book']:.3f}  answer {row['answer']:.3f} right {row['right']:.3f}  "
              f"{rate:.0f} tok/s  left {left / 60:.0f} min  {asked}", flush=True)

    def run(self):
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, lambda *_: setattr(self, "quit", True))
        saved = drawn = time.time()
        while self.stage < len(self.recipe["stages"]) and not self.quit:
            stage = self.recipe["stages"][self.stage]
            if self.batches:
                self.batches.start(stage)
            tally, tokens, mark = np.zeros(5 + 2 * N_KINDS), 0, time.time()
            last = mark                                          # of the last step, for the time spent in this stage
            while self.done(stage) < 1 and not self.quit:
                self.set_lr(stage)
                before = self.tokens
                tally += self.one_step(stage)
                tokens += self.tokens - before
                now = time.time()
                self.stage_seconds, last = self.stage_seconds + now - last, now
                if now - mark > self.args.log_every:
                    self.reread()
                    stage = self.recipe["stages"][self.stage]
                    self.seconds += now - mark
                    self.report(stage, tally, tokens, now - mark)
                    tally, tokens, mark = np.zeros(5 + 2 * N_KINDS), 0, now
                if now - saved > self.args.save_every:
                    self.save()
                    saved = time.time()
                if now - drawn > 600:
                    draw_curve(self.log_path, os.path.join(self.args.out, "curve.png"))
                    drawn = time.time()
            if self.batches:
                self.batches.stop_last()
            if not self.quit:
                self.stage, self.stage_tokens, self.stage_seconds = self.stage + 1, 0, 0.0
            self.save()
        draw_curve(self.log_path, os.path.join(self.args.out, "curve.png"))
        if self.workers:
            self.workers.close()
        print("stopped" if self.quit else "done", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--prep", required=True, help="folder that prepare.py wrote")
    ap.add_argument("--out", required=True, help="folder for checkpoint.pt, log.jsonl, curve.png")
    ap.add_argument("--recipe", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "recipe.json"))
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--workers", type=int, default=1, help="on a CPU that is shared: so many processes of one thread each, in place of one of several threads")
    ap.add_argument("--save-every", type=float, default=240, metavar="SECONDS")
    ap.add_argument("--log-every", type=float, default=30, metavar="SECONDS")
    ap.add_argument("--no-compile", action="store_true")
    Trainer(ap.parse_args()).run()


if __name__ == "__main__":
    main()
