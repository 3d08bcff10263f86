"""Changes to how batches are made: none is lost, none is stale, a resumed run has the same."""

from collections.abc import Callable
from typing import Any

from fairseq_ext.wrapping import wrap


def keep_last_batch() -> None:
    """Append to the batches what `batch_by_size` has left out."""

    def batch_by_size(original: Callable, indices: Any, *args: Any, **kwargs: Any) -> list:
        batches = original(indices, *args, **kwargs)
        kept = sum(map(len, batches))
        if kwargs.get("fixed_shapes") is None and kept < len(indices):
            batches = [*batches, indices[kept:]]
        return batches

    wrap("fairseq.data.data_utils", "batch_by_size", batch_by_size)


def repeat_batches() -> None:
    """Make batches as in the first epoch, whichever epoch a run resumes in."""

    def get(original: Callable, task: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        epoch = kwargs.get("epoch", 1)
        remade = getattr(task.cfg, "rebuild_batches", False) or not task.can_reuse_epoch_itr(
            dataset
        )
        if remade or dataset in task.dataset_to_epoch_iter:
            return original(task, dataset, *args, **kwargs)
        iterator = original(task, dataset, *args, **kwargs | {"epoch": 1})
        iterator.epoch = epoch
        dataset.set_epoch(epoch)
        return iterator

    wrap("fairseq.tasks.fairseq_task:FairseqTask", "get_batch_iterator", get)


def refresh_cached_items() -> None:
    """Empty the cache of an LRUCacheDataset at the start of an epoch."""
    from fairseq.data import BaseWrapperDataset, LRUCacheDataset

    def set_epoch(self: LRUCacheDataset, epoch: int) -> None:
        LRUCacheDataset.__getitem__.cache_clear()
        BaseWrapperDataset.set_epoch(self, epoch)

    LRUCacheDataset.set_epoch = set_epoch


def restart_workers() -> None:
    """Start the workers that load data anew in every epoch."""

    def start(original: Callable, iterator: Any, *args: Any, **kwargs: Any) -> None:
        original(iterator, *args, **kwargs)
        iterator.persistent_workers = False

    wrap("fairseq.data.iterators:EpochBatchIterator", "__init__", start)
