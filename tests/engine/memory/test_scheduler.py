"""Devices of tensors and copies between them, by the rules of llama.cpp's scheduler."""

from engine.memory.scheduler import Kind, Tensor, TensorGraph, schedule

GPU, SECOND, CPU = 0, 1, 2


def weight(device: int) -> Tensor:
    return Tensor((0, "weight"), kind=Kind.WEIGHT, device=device)


def product(device: int, *sources: Tensor) -> Tensor:
    return Tensor((0, "product"), (weight(device), *sources), device=device)


def plain(*sources: Tensor, **fields: bool) -> Tensor:
    return Tensor((0, "plain"), sources, **fields)  # type: ignore[arg-type]  # flags by name


def graph_of(last: Tensor) -> TensorGraph:
    graph = TensorGraph()
    graph.expand(last)
    return graph


def test_what_has_no_weight_goes_where_its_neighbours_on_gpus_are() -> None:
    tokens = Tensor((0, "tokens"), kind=Kind.INPUT, device=CPU)
    first = plain(tokens)
    second = plain(product(GPU, first))
    third = plain(product(SECOND, second))
    schedule(graph_of(third), 3, 1)
    assert [x.device for x in (first, second, third)] == [GPU, GPU, SECOND]


def test_what_no_gpu_can_compute_is_computed_by_the_cpu() -> None:
    odd = plain(product(GPU), is_cpu_only=True)
    last = product(GPU, odd)
    plan = schedule(graph_of(last), 3, 1)
    assert odd.device == CPU
    crossing = [x for x in plan.steps if x.kind is Kind.COMPUTED and not x.sources]
    assert [x.device for x in crossing] == [CPU, GPU], "to the CPU and back"


def test_a_device_gets_one_copy_of_what_it_lacks() -> None:
    tokens = Tensor((0, "tokens"), kind=Kind.INPUT, device=CPU)
    first = product(GPU, tokens)
    last = product(GPU, first, tokens)
    plan = schedule(graph_of(last), 3, 1)
    assert sum(x.size == (0, "tokens") for x in plan.steps) == 1
    assert last.sources[2] is first.sources[1] is not tokens


def test_weights_that_visit_a_gpu_come_one_after_the_other() -> None:
    first = Tensor((0, "product"), (weight(CPU),), device=GPU)
    last = Tensor((0, "product"), (weight(CPU), first), device=GPU)
    plan = schedule(graph_of(last), 3, 1)
    names = [None if x.size is None else x.size[1] for x in plan.steps]
    assert names == [None, "weight", "product", None, "weight", "product"]


def test_in_a_pipeline_inputs_and_copies_are_there_four_times_from_the_start() -> None:
    tokens = Tensor((0, "tokens"), kind=Kind.INPUT, device=CPU)
    last = product(SECOND, product(GPU, tokens))
    plan = schedule(graph_of(last), 3, 4)
    places = [(x.size, x.device) for x in plan.leading]
    assert places.count(((0, "tokens"), CPU)) == 4
    assert places.count(((0, "tokens"), GPU)) == 4
    assert places.count(((0, "product"), SECOND)) == 4
    assert all(x.is_kept for x in plan.leading)
