#!/usr/bin/env bash
# Text for masked language modelling: raw text to sentences, a byte-level BPE and a folder for
# fairseq. Documents are separated by empty lines.
#
# Usage: bash scripts/prepare_mlm.sh CORPUS [OUT] [--vocabulary N] [--documents FORM] [--valid N]
#          [--offline DIR]
#
#   CORPUS            wikitext-103  $FAIRSEQ_EXT_CORPORA/wikitext-103/wiki.{train,valid,test}.raw if
#                                   that variable is set, else a download (exit code 69 if it fails)
#                     books         for development: $FAIRSEQ_EXT_CORPORA/gutenberg and the test
#                                   part of its wikitext-2; the valid part of that for validation
#                     FOLDER        *.txt and *.txt.gz files in a folder and in those below it, each once,
#                                   without hidden ones
#   OUT               the folder to make (default data-bin/CORPUS)
#   --vocabulary N    tokens of a byte-level BPE learned from the training part (default 8000;
#                     the papers have 52,000), or gpt2 for that of GPT-2 and RoBERTa: encoder.json,
#                     vocab.bpe and dict.txt of $FAIRSEQ_EXT_CORPORA/gpt2_bpe if that folder is
#                     there, else downloads
#   --documents FORM  documents in the files of a FOLDER (default file):
#                     file       each file is a document; blank lines separate paragraphs
#                     blank      blank lines separate documents, each line is a paragraph
#                     wikitext   articles that begin with a line '= Title ='
#                     gutenberg  as file, without Project Gutenberg's text before and after the book
#   --offline DIR     a folder with what would be downloaded, in it or in folders below it:
#                     wiki.{train,valid,test}.raw, plain or .gz, or the .zip with them; encoder.json,
#                     vocab.bpe and dict.txt
#   --valid N         documents held out for validation, the last ones (default: 1 % of them, at
#                     least 2; the last 1 % of each one's sentences where those would be more than
#                     a tenth of the text, as of few books).
#                     Not for a corpus that has a validation part: files of a FOLDER with the word
#                     valid, val or dev in their path (files with the word test become a test
#                     part); it says which files these are.
#
# OUT also has the text (text/), one sentence a line, the BPE (bpe/), for fairseq's
#   --bpe gpt2 --gpt2-encoder-json OUT/bpe/encoder.json --gpt2-vocab-bpe OUT/bpe/vocab.bpe
# and manifest.json. After an interruption the same command continues where it was.
# Cost, on two cores: books 40 seconds; WikiText-103 (estimated from that) 20 minutes and 3 GB of disk.

. "$(dirname "$0")/lib/data.sh"

# find_corpus NAME: set SOURCES, arguments of fairseq_ext.prepare.documents.
find_corpus() {
  local part books wikitext
  case "$1" in
  wikitext-103)
    for part in train valid test; do
      SOURCES+=(--source "$part" wikitext "$WORK/raw/wiki.$part.raw")
    done
    ;;
  books)
    [ -n "${FAIRSEQ_EXT_CORPORA:-}" ] ||
      die "'books' are in a folder of corpora: set FAIRSEQ_EXT_CORPORA to it."
    books=$(corpus_folder gutenberg)
    wikitext=$(corpus_folder wikitext-2)
    SOURCES=(--source train gutenberg "$books" --source train wikitext "$wikitext/test.txt.gz"
      --source valid wikitext "$wikitext/valid.txt.gz")
    ;;
  *)
    [ -d "$1" ] || die "CORPUS is '$1' and must be wikitext-103, books or a folder of text."
    SOURCES=(--source named "${documents:-file}" "$1")
    return
    ;;
  esac
  [ -z "$documents" ] || die "--documents is for a folder of text and CORPUS is '$1': leave it out."
}

# extract_wikitext: extract WORK/raw from a folder with the files or their archive, or from a download.
extract_wikitext() {
  local folder part parts=()
  require_room "$WORK" 3000 --work "$WORK" ${offline:+--corpus "$offline"}
  folder=${offline:-$(corpus_folder wikitext-103)}
  fetch_archives "$folder" wikitext-103 wikitext-103
  for part in train valid test; do parts+=("wiki.$part=wiki.$part.@"); done
  step raw "Reading the corpus" unless_refused extract "$FROM" "$WORK/raw" \
    --languages raw --parts "${parts[@]}"
}

# copy_gpt2: copy the BPE and dictionary of GPT-2 from a folder, if one is given, or from a download.
copy_gpt2() {
  local from name folder=$offline files=(gpt2-{encoder.json,vocab.bpe,dict.txt})
  [ -n "$folder" ] || [ ! -d "${FAIRSEQ_EXT_CORPORA:-}/gpt2_bpe" ] ||
    folder=$FAIRSEQ_EXT_CORPORA/gpt2_bpe
  if [ -n "$folder" ]; then
    from=$(prepare_step fetch --given "$folder" "${files[@]}")
  else
    from=$(dirname "$OUT")/downloads/gpt2_bpe
    prepare_step fetch "$from" "${files[@]}"
  fi
  for name in encoder.json vocab.bpe; do produce "$WORK/bpe/$name" cat "$from/$name"; done
  produce "$WORK/encoded/dict.txt" print_gpt2_dictionary "$from/dict.txt"
}

# print_gpt2_dictionary FILE: print a dictionary, which has no published checksum, and <mask> where
# fairseq adds it.
print_gpt2_dictionary() {
  [ "$(wc -l <"$1")" -eq 50260 ] ||
    die "$1 does not have the 50260 lines of the dictionary for GPT-2's BPE: get it again."
  cat "$1"
  say '<mask> 0'
}

SOURCES=()
read_options 'WORD --vocabulary=8000 --documents= --valid# --offline=' "$@"
[ ${#WORDS[@]} -gt 0 ] && [ ${#WORDS[@]} -lt 3 ] ||
  die "${#WORDS[@]} words are given, which are to be CORPUS and OUT: see 'bash $0 --help'."
corpus=${WORDS[0]}
[[ "$vocabulary" =~ ^(gpt2|[1-9][0-9]*)$ ]] ||
  die "--vocabulary is '$vocabulary' and must be a positive number or gpt2."
[ "$vocabulary" = gpt2 ] || [ "${#vocabulary}" -gt 3 ] || [ "$vocabulary" -gt 256 ] ||
  die "--vocabulary is $vocabulary and 256 tokens are the bytes: give a larger number."
[ -z "$offline" ] || [[ " $corpus $vocabulary " =~ \ (wikitext-103|gpt2)\  ]] ||
  die "--offline is for wikitext-103 and --vocabulary gpt2, since nothing else is downloaded:" \
    "leave it out."
[ -z "$offline" ] || [ -d "$offline" ] ||
  die "--offline is '$offline' and must be a folder with what would be downloaded."
name=$corpus
[ ! -d "$corpus" ] || name=$(basename "$(realpath "$corpus")")
case "$corpus" in
wikitext-103 | books) SETTINGS=("corpus $corpus") ;;
*)
  SETTINGS=("corpus $(realpath "$corpus" 2>/dev/null || true)")
  texts=(-mindepth 1 -name '.*' -prune -o -type f \( -name '*.txt' -o -name '*.txt.gz' \) -print)
  SETTINGS+=("files $(find -L "$corpus" "${texts[@]}" 2>/dev/null | wc -l || true)")
  ;;
esac
record_settings prepare_mlm.sh --vocabulary --documents --valid --offline
data_recipe "data-bin/$name" "${WORDS[1]:-}"
find_corpus "$corpus"

begin "${SOURCES[*]} ${FAIRSEQ_EXT_CORPORA:-}"
[ "$corpus" != wikitext-103 ] || extract_wikitext
[ "$vocabulary" != gpt2 ] || copy_gpt2
if [ ! -d "$WORK/text" ]; then
  say "Cleaning the text and finding its sentences"
  unless_refused documents "$WORK/text" "${SOURCES[@]}" ${valid:+--valid "$valid"}
fi
size=${vocabulary#gpt2}
step encoded "Encoding with a byte-level BPE (--vocabulary $vocabulary)" unless_refused \
  byte_bpe "$WORK/text" "$WORK/bpe" "$WORK/encoded" ${size:+--size "$size"}
prefixes=()
for part in $(ls "$WORK/text"); do prefixes+=("--${part}pref" "$WORK/encoded/$part"); done
step binarised "Binarising" binarise --only-source --srcdict "$WORK/encoded/dict.txt" "${prefixes[@]}"
complete "$WORK/encoded" --documents
