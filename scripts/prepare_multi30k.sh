#!/usr/bin/env bash
# Multi30k task 1, English to German: 29,000 image captions, test set test_2016_flickr.
#
# Usage: bash scripts/prepare_multi30k.sh [OUT]      (default data-bin/multi30k.en-de)
#
# Takes the raw files from $FAIRSEQ_EXT_CORPORA/multi30k-en-de if that variable is set, else
# downloads them (exit code 69 if that fails). Tokenised, lower-cased, 4,000 joint BPE merges.
# Cost: one minute.

. "$(dirname "$0")/lib.sh"
data_recipe data-bin/multi30k.en-de "$@"

URL=https://github.com/multi30k/dataset/raw/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw
# ours, theirs, SHA-256
FILES="\
train.en train.en.gz d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
train.de train.de.gz 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
valid.en val.en.gz 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
valid.de val.de.gz f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
test.en test_2016_flickr.en.gz 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
test.de test_2016_flickr.de.gz 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"

corpus=$(given_corpus multi30k-en-de)
while read -r _ theirs _; do
  [ -z "$corpus" ] || [ -f "$corpus/$theirs" ] ||
    die "There is no $theirs in '$corpus', given by FAIRSEQ_EXT_CORPORA: add it or unset that."
done <<<"$FILES"
work_from "${corpus:-$URL}"
setup_environment
while read -r ours theirs sha256; do
  [ -n "$corpus" ] || produce "$WORK/raw/$theirs" fetch "$URL/$theirs" "$sha256"
  produce "$WORK/raw/$ours" gzip -dc "${corpus:-$WORK/raw}/$theirs"
done <<<"$FILES"
prepare_translation en de 4000 lowercase
