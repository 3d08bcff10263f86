#!/usr/bin/env bash
# Text for masked language modelling: raw text to sentences, byte-level BPE and a folder for
# fairseq, in which empty lines part documents.
#
# Usage: bash scripts/prepare_mlm.sh CORPUS [OUT] [--vocabulary N] [--documents FORM] [--valid N]
#          [--offline DIR]
#
#   CORPUS            wikitext-103  $FAIRSEQ_EXT_CORPORA/wikitext-103/wiki.{train,valid,test}.raw if
#                                   that variable is set, else a download (exit code 69 if it fails)
#                     books         for development: $FAIRSEQ_EXT_CORPORA/gutenberg and the test
#                                   part of its wikitext-2; the valid part of that for validation
#                     FOLDER        *.txt and *.txt.gz files in it and in its folders
#   OUT               the folder to make (default data-bin/CORPUS)
#   --vocabulary N    tokens of a byte-level BPE learned from the training part (default 8000;
#                     the papers have 52,000), or gpt2 for that of GPT-2 and RoBERTa: encoder.json,
#                     vocab.bpe and dict.txt of $FAIRSEQ_EXT_CORPORA/gpt2_bpe if there, else downloads
#   --documents FORM  documents in the files of a FOLDER (default file):
#                     file       each file is one; blank lines part paragraphs
#                     blank      blank lines part documents, each line is a paragraph
#                     wikitext   articles that begin with a line '= Title ='
#                     gutenberg  as file, without Project Gutenberg's text before and after the book
#   --offline DIR     for wikitext-103: takes wiki.{train,valid,test}.raw, or the .zip with them, from there
#   --valid N         documents held out for validation, the last ones (default: 1 % of them, at
#                     least 2 of 4 or more; of a single document, the last 1 % of its sentences).
#                     Not for a corpus with a part for that: files with the word valid in their
#                     path, in a FOLDER; with test: a part for testing.
#
# OUT also has the text (text/), one sentence a line, and the BPE (bpe/), for fairseq's
#   --bpe gpt2 --gpt2-encoder-json OUT/bpe/encoder.json --gpt2-vocab-bpe OUT/bpe/vocab.bpe
# Interrupted, it goes on where it was. Cost: books half a minute, WikiText-103 (estimated from
# that) 20 minutes and 3 GB while it works; two cores.

. "$(dirname "$0")/lib.sh"

# Two addresses of one file.
WIKITEXT="https://wikitext.smerity.com/wikitext-103-raw-v1.zip
https://huggingface.co/datasets/mattdangerw/wikitext-103-raw/resolve/main/wikitext-103-raw-v1.zip"
ZIP=wikitext-103-raw-v1.zip
WIKITEXT_SHA256=91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794
GPT2=https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe
# Beside them is dict.txt, of which no checksum is known.
GPT2_FILES="\
encoder.json 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
vocab.bpe 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"

# member ZIP NAME
member() {
  python -c 'import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as file:
    shutil.copyfileobj(file, sys.stdout.buffer)' "$@"
}

# find_corpus NAME: sets CORPUS, its folder, and SOURCES, arguments of fairseq_ext.data.documents.
find_corpus() {
  local part wikitext
  case "$1" in
  wikitext-103)
    CORPUS=${offline:-$(given_corpus wikitext-103)}
    if [ ! -e "$CORPUS/wiki.train.raw" ] && [ -e "$CORPUS/$ZIP" ]; then
      ZIPPED=$CORPUS/$ZIP CORPUS=''
    fi
    for part in train valid test; do
      SOURCES+=(--source "$part" wikitext "${CORPUS:-$WORK/raw}/wiki.$part.raw")
    done
    ;;
  books)
    [ -n "${FAIRSEQ_EXT_CORPORA:-}" ] ||
      die "'books' are in a folder of corpora: set FAIRSEQ_EXT_CORPORA to it."
    CORPUS=$(given_corpus gutenberg) wikitext=$(given_corpus wikitext-2)
    SOURCES=(--source train gutenberg "$CORPUS" --source train wikitext "$wikitext/test.txt.gz"
      --source valid wikitext "$wikitext/valid.txt.gz")
    ;;
  *)
    [ -d "$1" ] || die "CORPUS is '$1' and must be wikitext-103, books or a folder of text."
    CORPUS=$1 SOURCES=(--source named "${documents:-file}" "$1")
    return
    ;;
  esac
  [ -z "$documents" ] || die "--documents is for a folder of text and CORPUS is '$1': leave it out."
}

# fetch_wikitext: from the first address that answers.
fetch_wikitext() {
  local url
  for url in $WIKITEXT; do fetch "$url" "$WIKITEXT_SHA256" && return; done
  return 69
}

unpack_wikitext() {
  local part
  require_room "$WORK" 3000
  if [ -n "$ZIPPED" ]; then
    produce "$WORK/raw/$ZIP" fetch "file://$(realpath "$ZIPPED")" "$WIKITEXT_SHA256"
  else
    produce "$WORK/raw/$ZIP" fetch_wikitext
  fi
  for part in train valid test; do
    produce "$WORK/raw/wiki.$part.raw" \
      member "$WORK/raw/$ZIP" "wikitext-103-raw/wiki.$part.raw"
  done
}

get_gpt2() {
  local from=$GPT2 name sha256
  if [ -n "${FAIRSEQ_EXT_CORPORA:-}" ] && [ -d "$FAIRSEQ_EXT_CORPORA/gpt2_bpe" ]; then
    from=file://$(cd "$FAIRSEQ_EXT_CORPORA/gpt2_bpe" && pwd)
  fi
  while read -r name sha256; do
    produce "$WORK/bpe/$name" fetch "$from/$name" "$sha256"
  done <<<"$GPT2_FILES"
  produce "$WORK/encoded/dict.txt" gpt2_dictionary "$from/dict.txt"
}

# fairseq adds <mask> to it, at the same place.
gpt2_dictionary() { # URL
  local text
  text=$(fetch "$1") || return
  [ "$(wc -l <<<"$text")" -eq 50260 ] ||
    die "$1 does not have the 50260 lines of the dictionary for GPT-2's BPE: get it again."
  printf '%s\n<mask> 0\n' "$text"
}

# unless_refused COMMAND...: what is refused leaves no work, so that corrected text is read next.
unless_refused() {
  "$@" && return
  [ -d "$WORK/raw" ] || rm -r "$WORK"
  exit 1
}

summary() { # PART
  awk -v part="$1" 'NF { sentences++; tokens += NF } !NF { breaks++ } END {
    printf "%s: %d documents, %d sentences, %d tokens\n", part, breaks + 1, sentences, tokens
  }' "$WORK/encoded/$1"
}

vocabulary=8000 documents='' valid='' offline='' ZIPPED='' WORDS=() SOURCES=()
options 'WORD --vocabulary= --documents= --valid= --offline=' "$@"
[ ${#WORDS[@]} -gt 0 ] && [ ${#WORDS[@]} -lt 3 ] ||
  die "${#WORDS[@]} words are given, which are to be CORPUS and OUT: see 'bash $0 --help'."
[[ "$vocabulary" =~ ^(gpt2|[1-9][0-9]*)$ ]] ||
  die "--vocabulary is '$vocabulary' and must be a positive number or gpt2."
positive --valid "${valid:-1}"
[ -z "$offline" ] || [ "${WORDS[0]}" = wikitext-103 ] ||
  die "--offline is for wikitext-103 and CORPUS is '${WORDS[0]}': leave it out."
[ -z "$offline" ] || [ -e "$offline/wiki.train.raw" ] || [ -e "$offline/$ZIP" ] ||
  die "--offline is '$offline', which has no wiki.train.raw and no $ZIP: give the folder with it."
data_recipe "data-bin/$(basename "${WORDS[0]}")" "${WORDS[1]:-}"
find_corpus "${WORDS[0]}"

work_from "${SOURCES[*]} $vocabulary $valid"
setup_environment
[ -n "$CORPUS" ] || unpack_wikitext
[ "$vocabulary" != gpt2 ] || get_gpt2
if [ ! -d "$WORK/text" ]; then
  say "Cleaning the text and finding its sentences"
  unless_refused python -m fairseq_ext.data.documents \
    "$WORK/text" "${SOURCES[@]}" ${valid:+--valid "$valid"}
fi
say "Encoding with a byte-level BPE (--vocabulary $vocabulary)"
size=${vocabulary#gpt2}
unless_refused python -m fairseq_ext.data.byte_bpe "$WORK/text" "$WORK/bpe" "$WORK/encoded" \
  ${size:+--size "$size"}
say "Binarising"
rm -f "$WORK"/{train,valid,test}.* # of workers that were interrupted
prefixes=()
for part in $(ls "$WORK/text"); do prefixes+=("--${part}pref" "$WORK/encoded/$part"); done
fairseq-preprocess --only-source --srcdict "$WORK/encoded/dict.txt" "${prefixes[@]}" \
  --destdir "$WORK" --workers "$CORES" &>"$WORK/binarise.log" ||
  die "Binarising failed: the reason is at the end of $WORK/binarise.log."
for part in $(ls "$WORK/text"); do summary "$part"; done
say "dict.txt: $(awk 'END { print NR }' "$WORK/dict.txt") symbols"
rm -rf "$WORK/raw" "$WORK/encoded" "$WORK/source"
mv "$WORK" "$OUT"
say "$OUT is ready."
