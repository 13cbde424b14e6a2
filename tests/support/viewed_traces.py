"""A small training with held-out trajectories for the viewer, and a trajectory whose texts attack a page."""

from __future__ import annotations

from pathlib import Path

from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.events import Mark, MarkKind, UserEvent
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace
from mcp_rollout.rollout.trace.run_record import RunRecord, write_run_record
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.trace.trained import write_trained
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment, digest
from mcp_rollout.rollout.types import Call, Completion, Edit, FinishReason, Parsed

STEPS, ROWS, SAMPLES = 4, 2, 4
ATTACK = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<svg onload=\"document.title='owned'\"></svg> javascript:alert(1) \x1b[31mred\x1b[0m \u202egnp.exe\u202c a\u200bb "
    "\U000e0041 \x00 </script> http://example.invalid/leak"
)
HOSTILE_ID = "../../<b>&?#%2f"


def training(directory: Path, *, steps: int = STEPS) -> None:
    """Write `steps` steps of a training, with what the trainer computed, and the validations around it."""
    run = run_record(directory)
    store = TraceStore(directory)
    for row in range(3):
        for step in (0, steps):
            store.append(
                order(Origin(row=row, step=step, validate=True, engine="verl"), run, is_right=step > 0 and row == 0)
            )
    for step in range(1, steps + 1):
        traces = [
            order(
                Origin(row=row, sample=sample, step=step, uid=f"{step}-{row}", engine="verl"),
                run,
                is_right=sample < step,
            )
            for row in range(ROWS)
            for sample in range(SAMPLES)
        ]
        for trace in traces:
            store.append(trace)
        write_trained(directory, step, [trained(trace) for trace in traces])
    store.close()


def run_record(directory: Path, *, prompt_length: int = 400) -> str:
    return write_run_record(
        directory,
        RunRecord(
            kind="training",
            environment={"name": "shop"},
            tools=[],
            tool_digests={},
            engine="verl",
            sampling={"prompt_length": prompt_length},
        ),
    )


def order(origin: Origin, run: str, *, is_right: bool) -> Trace:
    """Two turns: the order is looked at; the right step is taken, or one that the shop refuses."""
    kind = "held-out" if origin.validate_ else "train"
    task = Task(
        environment="shop",
        task=f"{kind}-{origin.row}",
        seed=origin.row,
        prompt=({"role": "user", "content": "Help é"},),
    )
    trace = Trace.begin(f"{kind}-{origin.step}-{origin.row}-{origin.sample}", task, origin)
    trace.run, trace.began_at, trace.lease_wait_s, trace.elapsed_s = run, 1000.0, 0.5, 4.0
    trace.open(ByteTokens().encode("<|im_start|>user\nHelp é<|im_end|>\n"))
    turn(trace, "Look first.", "", Call(name="look", arguments={"order": 7}), "pending")
    name = "cancel" if is_right else "track"
    answer = "cancelled" if is_right else "only shipped orders can be tracked"
    turn(trace, f"I {name} it.", "", Call(name=name, arguments={}), answer, is_error=not is_right)
    turn(trace, "", f"The order is {answer}.", None, "")
    trace.turns[-1].user = UserEvent(seq=1, message="Bye.", done=True)
    trace.messages.append({"role": "user", "content": "Bye."})
    trace.stop_reason = StopReason.USER_DONE
    trace.reward = Reward(score=float(is_right), parts={"done": float(is_right), "polite": 0.0})
    return trace


def tree(directory: Path) -> None:
    """Three trajectories of a group: two branch off the first one."""
    run = run_record(directory)
    store = TraceStore(directory)
    for sample, (parent, shared) in enumerate([(None, None), ("root", 40), ("root", 60)]):
        origin = Origin(row=9, sample=sample, step=1, uid="tree", engine="verl", parent=parent, branched_at=shared)
        trace = order(origin, run, is_right=sample > 0)
        trace.id = f"branch-{sample}" if parent else "root"
        store.append(trace)
    store.close()


def turn(trace: Trace, thinking: str, content: str, call: Call | None, result: str, *, is_error: bool = False) -> None:
    thought = ByteTokens().encode(f"<think>{thinking}</think>") if thinking else []
    written = f'{{"name": "{call.name}"}}' if call else content
    ids = thought + ByteTokens().encode(f"{written}<|im_end|>")
    completion = Completion(ids=ids, logprobs=[-0.01] * len(ids), finish_reason=FinishReason.STOP)
    calls = () if call is None else (call,)
    parsed = Parsed(content=content, thinking=thinking, thoughts=((0, len(thought)),) if thought else (), calls=calls)
    made = trace.add_completion(completion, parsed, Edit(appended=ids), mask_thinking=False)
    made.began_at, made.generate_s = 1000.6 + len(trace.turns), 0.4
    if call is not None:
        given = ToolResult(content=(Content(kind=ContentKind.TEXT, text=result),), is_error=is_error, elapsed_s=0.1)
        trace.messages += trace.add_calls([call], [given], servers=["shop"])
        made.tools[0].began_at = made.began_at + 0.4
        trace.add_context(Edit(appended=ByteTokens().encode(f"\n<|im_start|>tool\n{result}<|im_end|>\n")))


def trained(trace: Trace) -> TrainedSegment:
    """The token in the middle of the wrong step was undecided; the others were certain."""
    score = trace.reward.score if trace.reward else 0.0
    mask = [bool(flag) for flag in trace.loss_mask]
    logprobs = [-0.001 if flag else 0.0 for flag in mask]
    logprobs[undecided(trace)] = -0.7
    return TrainedSegment(
        trace=trace.id,
        segment=0,
        step=trace.origin.step,
        uid=trace.origin.uid,
        sample=trace.origin.sample,
        output=0,
        ids_digest=digest(trace.prompt_ids, trace.response_ids),
        mask=mask,
        sampled_logprobs=logprobs,
        trainer_logprobs=logprobs,
        advantages=[(1.0 if score else -1.0) if flag else 0.0 for flag in mask],
        entropy=[0.5 if flag else 0.0 for flag in mask],
    )


def undecided(trace: Trace) -> int:
    """Place of a token of the second turn: the first letter of the step in the thought."""
    span = next(span for span in trace.spans if span.turn == 1 and span.kind.is_sampled)
    return span.start + 1 + len("I ")


def hostile(directory: Path) -> None:
    """A trajectory whose every text attacks the page that shows it."""
    task = Task(environment=ATTACK, task=ATTACK, seed=1, prompt=({"role": ATTACK, "content": ATTACK},), answer=ATTACK)
    trace = Trace.begin(HOSTILE_ID, task, Origin(engine=ATTACK, split=ATTACK))
    trace.open(ByteTokens().encode(ATTACK))
    turn(trace, ATTACK, ATTACK, Call(name=ATTACK, arguments={ATTACK: ATTACK}), ATTACK, is_error=True)
    trace.turns[0].marks.append(Mark(kind=MarkKind.VOID, detail=ATTACK))
    trace.turns[0].user = UserEvent(seq=1, message=ATTACK, done=True)
    trace.messages.append({"role": "user", "content": ATTACK})
    trace.reward = Reward(score=0.0, parts={ATTACK: 0.0})
    trace.fail(ATTACK, ATTACK)
    trace.run = run_record(directory)
    store = TraceStore(directory)
    store.append(trace)
    store.close()
