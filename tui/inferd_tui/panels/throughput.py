"""What comes out for what goes in: tokens, requests, prefix hits, drafts; use of the hardware and cost."""

from __future__ import annotations

from rich.text import Text

from inferd_client.protocol import CostStatus, StatusReply, Utilisation
from inferd_tui.frame import Frame, main_model
from inferd_tui.history import total
from inferd_tui.panels.panel import Panel, row
from inferd_tui.units import NA, money, number, percent, rate

OUTPUT = "generation_tokens_total"
PROMPT = "prefill_tokens_total"


class Throughput(Panel):
    """Rates are over the last seconds, shares over all since the daemon's start."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Text]:
        status = frame.status
        if status is None:
            return []
        return [
            _speed("output", OUTPUT, frame, width),
            _speed("prompt", PROMPT, frame, width),
            row(_requests(status, frame)),
            row(_prefix(status)),
            row(_drafts(status)),
            row(_use(status)),
            row(frame.glyphs.text(_power(status.cost or CostStatus()))),
            row(frame.glyphs.text(_parts(status.cost or CostStatus()))),
        ]


def _use(status: StatusReply) -> str:
    """Say how much of the measured ceilings was used in the last minute, by the model of the header."""
    model = main_model(status)
    use = (model.utilisation if model is not None else None) or Utilisation()
    weights = use.weight_share
    split = NA if weights is None else f"{100 * weights:.0f}/{100 - 100 * weights:.0f}%"
    return f"MFU {percent(use.mfu, 1)} MBU {percent(use.mbu, 1)} weights/KV {split}"


def _power(cost: CostStatus) -> str:
    watts = NA if cost.watts is None else f"{cost.watts:.0f}W"
    if cost.per_million is not None:
        return f"power {watts} cost {money(cost.per_million, cost.currency)}/M {cost.source}"
    late = cost.source != "n/a" and cost.output_tokens and not cost.good_tokens
    return f"power {watts} cost {NA}{': no token was in time' if late else ''}"


def _parts(cost: CostStatus) -> str:
    prefill, decode, idle = (
        money(part, "") for part in (cost.prefill_per_million, cost.decode_per_million, cost.idle_per_million)
    )
    return f"of it prefill {prefill}  decode {decode}  idle {idle}"


def _speed(label: str, counter: str, frame: Frame, width: int) -> Text:
    figure = f"{label:<8}{rate(frame.history.rate(counter)):>8} tok/s "
    return row(figure, (frame.glyphs.spark(frame.history.rates(counter), width - len(figure)), "cyan"))


def _requests(status: StatusReply, frame: Frame) -> str:
    speed = rate(frame.history.rate("request_success_total"))
    served, failed = total(status, "request_success_total"), total(status, "request_error_total")
    return f"requests{speed:>8} /s  ok {number(served)}  failed {number(failed or 0)}"


def _prefix(status: StatusReply) -> str:
    hits, queries = total(status, "prefix_cache_hits_total"), total(status, "prefix_cache_queries_total")
    return f"prefix  {percent(hits, queries):>8} hit of {number(queries)} asked"


def _drafts(status: StatusReply) -> str:
    drafted = total(status, "spec_decode_num_draft_tokens_total")
    accepted = total(status, "spec_decode_num_accepted_tokens_total")
    return f"drafts  {percent(accepted, drafted):>8} kept of {number(drafted or None)} drafted"
