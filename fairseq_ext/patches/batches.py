"""Patches of batching: none is lost, stale or other after resuming, and its threads end."""

import atexit
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fairseq_ext.wrapping import as_usage_error, wrap, wrapper_of

TOO_LONG = (
    "{reason}, which is --max-tokens; give as many as the longest sentence has, or leave longer "
    "ones out by --max-source-positions with --skip-invalid-size-inputs-valid-test"
)
LONGEST_WAIT = 10.0  # seconds for a batch that is being made when a program ends


@wrapper_of("fairseq.data.data_utils", "batch_by_size")
def keep_last_batch(original: Callable, indices: Any, *args: Any, **kwargs: Any) -> list:
    """Append the indices that `batch_by_size` leaves out, as a batch of their own.

    Fault: The last batch is dropped if its size is no multiple of --required-batch-size-multiple
        (8), in training, validation and fairseq-generate.
    Asked: all users; silent, loses sentences; none.
    Since: fairseq 0.12.
    Until: batch_by_size returns every index.
    """
    with as_usage_error("Sentences lengths should not exceed", TOO_LONG, ""):
        batches = original(indices, *args, **kwargs) if len(indices) else []
    kept = sum(map(len, batches))
    if kwargs.get("fixed_shapes") is None and kept < len(indices):
        batches = [*batches, indices[kept:]]
    return batches


@wrapper_of("fairseq.tasks.fairseq_task:FairseqTask", "get_batch_iterator")
def repeat_batches(original: Callable, task: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    """Make batches as in the first epoch, whichever epoch a training resumes in.

    Fault: A training that is resumed in a later epoch has other batches, and sees some sentences
        twice and some never.
    Asked: who resumes; silent, loses sentences; none.
    Since: fairseq-fixed.
    Until: get_batch_iterator seeds without the epoch.
    """
    fresh = (
        getattr(task.cfg, "rebuild_batches", False)
        or kwargs.get("update_epoch_batch_itr")
        or not task.can_reuse_epoch_itr(dataset)
    )
    if fresh or dataset in task.dataset_to_epoch_iter:
        return original(task, dataset, *args, **kwargs)
    iterator = original(task, dataset, *args, **kwargs | {"epoch": 1})
    iterator.epoch = kwargs.get("epoch", 1)
    dataset.set_epoch(iterator.epoch)
    return iterator


@wrapper_of("fairseq.data:LRUCacheDataset", "set_epoch")
def refresh_cached_items(original: Callable, dataset: Any, epoch: int) -> None:
    """Empty the cache of an LRUCacheDataset at the start of an epoch.

    Fault: Data sets that cache their last items return these in a new epoch, masked as before.
    Asked: who pre-trains; silent; none.
    Since: fairseq 0.8.
    Until: LRUCacheDataset.set_epoch empties its cache.
    """
    from fairseq.data import LRUCacheDataset

    LRUCacheDataset.__getitem__.cache_clear()
    original(dataset, epoch)


@wrapper_of("fairseq.data:ConcatDataset", "__init__")
def use_whole_parts(
    original: Callable, dataset: Any, datasets: Any, sample_ratios: Any = 1
) -> None:
    """Use the first of several parts of a split once, unless it is said how often.

    Fault: By the default of --upsample-primary the first part is missing: training fails, or is of
        a part.
    Asked: who has train and train1; silent, loses text; none.
    Since: fairseq 0.10.
    Until: load_langpair_dataset takes -1 for 1.
    """
    if isinstance(sample_ratios, list):
        sample_ratios = [1 if ratio == -1 else ratio for ratio in sample_ratios]
    original(dataset, datasets, sample_ratios)


@wrapper_of("fairseq.data.iterators:EpochBatchIterator", "_get_iterator_for_epoch")
def shuffle_after_curriculum(
    original: Callable, iterator: Any, epoch: int, shuffle: bool, *args: Any, **kwargs: Any
) -> Any:
    """Shuffle batches from the first epoch on that is to be shuffled.

    Fault: Batches are shuffled in no later epoch either, except in a resumed training.
    Asked: who gives --curriculum; silent; none.
    Since: fairseq 0.12.2.
    Until: EpochBatchIterator tells its sampler.
    """
    if iterator.dataloader is not None:
        iterator.epoch_batch_sampler.shuffle = shuffle
    return original(iterator, epoch, shuffle, *args, **kwargs)


@wrapper_of("fairseq.data.iterators:EpochBatchIterator", "__init__")
def restart_workers(original: Callable, iterator: Any, *args: Any, **kwargs: Any) -> None:
    """Start new processes that load data in every epoch.

    Fault: Processes that load data are not told of a new epoch: masks stay as in the first.
    Asked: who gives --num-workers; silent; none.
    Since: fairseq 0.12.2, not 0.12.3, fairseq-fixed.
    Until: EpochBatchIterator tells its workers.
    """
    original(iterator, *args, **kwargs)
    iterator.persistent_workers = False


def stop_reading_ahead() -> None:
    """Let the threads that make batches ahead end before Python does.

    Fault: A thread that makes batches ahead runs on, and may abort the command (status 134) after
        its work.
    Asked: who stops amid an epoch; loud; none.
    Since: fairseq 0.10.
    Until: BufferedIterator ends its thread.
    """
    from fairseq.data.iterators import BackgroundConsumer

    def stop() -> None:
        readers = [each for each in threading.enumerate() if isinstance(each, BackgroundConsumer)]
        for reader in readers:
            reader._max_len = 0  # it ends after its next batch, for which its queue needs room
        until = time.monotonic() + LONGEST_WAIT
        while any(reader.is_alive() for reader in readers) and time.monotonic() < until:
            for reader in readers:
                with suppress(queue.Empty):
                    reader._queue.get(timeout=0.01)

    def create(original: Callable, iterator: Any) -> None:
        original(iterator)
        atexit.unregister(stop)
        atexit.register(stop)

    wrap("fairseq.data.iterators:BufferedIterator", "_create_consumer", create)
