#!/usr/bin/env bash
# VQA-v2 (Goyal et al. 2017): 658,111 questions about pictures for training and validation, and
# features of the boxes that up to three detectors found in these pictures.
#
# Usage: bash scripts/prepare_vqa.sh [OUT] --features NAME=PATH... [OPTION...]
#                                                                          (default data-bin/vqa)
#
#   --features NAME=PATH  a detector's features, the primary one first; once to three times. PATH is a
#                   folder, perhaps with folders, of .npy files (9.npy, COCO_train2014_000000000009.npy),
#                   HDF5 files (.h5, .hdf5; needs h5py) or bottom-up TSV files (.tsv, .tsv.0), or one such
#                   file. docs/data.md says where features are published and which forms of HDF5 are read
#   --offline DIR   a folder with the official files of questions and annotations, as JSON, plain or .gz,
#                   or in their archives (default: they are downloaded; exit code 69 if that fails)
#   --minival WHICH questions of val2014 for validation; the others train:
#                     FILE   a number of a question a line, or Pythia's file of them
#                            (v2_OpenEnded_mscoco_minival2014_questions.json)
#                     share  those about 22 % of the pictures, by a hash (default; not Pythia's own)
#                     all    all, so that train2014 alone trains
#   --answer-min-count N  questions whose usual answer it must be, to be in the vocabulary (default 9,
#                   which gives 3,129 answers)
#   --boxes MIN,MAX boxes of a picture (default 10,100): fewer are refused, more are cut
#   --strict        refuse training pictures that a detector lacks; else questions about them are left
#                   out. Pictures of validation and test must be there
#
# OUT has SPLIT.jsonl (questions, and their answers with the official accuracy of each), answers.txt (a
# class a line), dict.txt, views.txt, and SPLIT.NAME.npy, features in 16 bits that training maps into memory.
# After an interruption the same command continues where it was.
# Cost, estimated from 200 made-up pictures and 250,000 questions: 3 seconds of a core for each GB of
# features that is written (13 from TSV) besides what the disk takes, then the checksums; 150 GB for three
# detectors with 100 boxes x 2,048 numbers, 250 GB with test2015. Questions: a minute, 1.5 GB of memory.

. "$(dirname "$0")/lib/data.sh"

# read_features ARGUMENT...: move the values of --features, which may come several times, from the
# arguments to FEATURES, and leave the others in OTHERS.
read_features() {
  while [ $# -gt 0 ]; do
    if [ "$1" = --features ]; then
      [ $# -gt 1 ] || die "--features needs a value: see 'bash ${0#"$PWD/"} --help'."
      FEATURES+=("$2")
      shift
    else
      OTHERS+=("$1")
    fi
    shift
  done
}

FEATURES=() OTHERS=()
read_features "$@"
read_options 'WORD --offline= --minival=share --answer-min-count#9 --boxes=10,100 --strict' "${OTHERS[@]}"
[ ${#WORDS[@]} -lt 2 ] ||
  die "${#WORDS[@]} words are given and the only one is the output folder (default: data-bin/vqa)."
[ ${#FEATURES[@]} -gt 0 ] ||
  die "--features is needed: give NAME=PATH for each detector, the primary one first."
[[ "$boxes" =~ ^[1-9][0-9]{0,5},[1-9][0-9]{0,5}$ ]] ||
  die "--boxes is '$boxes' and must be two numbers, as in 10,100."
[ -z "$offline" ] || [ -d "$offline" ] ||
  die "--offline is '$offline' and must be a folder with the official files."
[[ "$minival" =~ ^(share|all)$ ]] || [ -f "$minival" ] ||
  die "--minival is '$minival' and must be share, all or a file with numbers of questions."
features="${FEATURES[*]}"
LARGE=("${FEATURES[@]#*=}")
record_settings prepare_vqa.sh --features --offline --minival --answer-min-count --boxes --strict
data_recipe data-bin/vqa "${WORDS[0]:-}" 1000 "$offline"

begin "$offline"
chosen=("${FEATURES[@]/#/--features=}" --boxes ${boxes//,/ } ${strict:+--strict})
step looked "Looking for features" unless_refused fairseq_ext.vqa.prepare.features check "$WORK" "${chosen[@]}"
fetch_archives "$offline" vqa-v2 vqa-v2-{questions-{train,val,test},annotations-{train,val}}
step raw "Reading questions and answers" unless_refused fairseq_ext.vqa.prepare.question_files "$FROM" "$WORK" \
  --minival "$minival" --answer-min-count "$answer_min_count"
step features "Writing features" unless_refused fairseq_ext.vqa.prepare.features convert "$WORK" "${chosen[@]}"
complete "$WORK/pieces"
