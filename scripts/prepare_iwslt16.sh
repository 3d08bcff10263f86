#!/usr/bin/env bash
# IWSLT 2016, English to German: 196,884 pairs of TED talks, the corpus of You et al. (2020) and of
# the attention guidance paper.
#
# Usage: bash scripts/prepare_iwslt16.sh [OUT] [OPTION...]        (default data-bin/iwslt16.en-de)
#
#   --offline DIR  a folder with 2016-01.tgz or the files in it; without it they are downloaded
#                  (exit code 69 if that fails)
#   --sets NAME    usual: validation tst2013, test tst2014 (default)
#                  you: validation dev2010 and tst2010 to tst2014, test QED tst2016, TED tst2015 and
#                  TED tst2016, as You et al.; the archive may lack their references
#   --merges N     merges of the joint BPE (default 32000)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces
#   --dictionaries joined (default) or separate
#
# Normalised, tokenised, cased; training pairs of up to 250 tokens and a ratio of 1.5. You et al.
# tokenise with spaCy and learn BPE on the test sets, too: their scores compare with theirs alone.
# Cost: 3 minutes, 1.5 GB.

. "$(dirname "$0")/lib/data.sh"
EXTRA='--sets=usual'
corpus_recipe iwslt16.en-de 32000 3000 "$@"
require_one_of --sets "$sets" usual you
# print_patterns NAME...: print the patterns of some sets, joined by +.
print_patterns() {
  local names=("${@/%/.en-de.@.xml}")
  (IFS=+ && say "${names[*]/#/IWSLT16.}")
}
case "$sets" in
usual) valid=$(print_patterns TED.tst2013) test=$(print_patterns TED.tst2014) ;;
you)
  valid=$(print_patterns TED.dev2010 TED.tst201{0..4})
  test=$(print_patterns QED.tst2016 TED.tst2015 TED.tst2016)
  ;;
esac
read_parallel_text en de iwslt16 iwslt16 -- train=train.tags.en-de.@ "valid=$valid" "test=$test" \
  --inner en-de.tgz
tokenise_text
sort_pairs text "$WORK/tokens=$WORK/text" --longest 250
split_words "$WORK/text" "$WORK/pieces"
finish "$WORK/text" "$WORK/pieces"
