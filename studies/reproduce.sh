#!/usr/bin/env bash
# Runs what is in studies/results again, into runs/NAME.1, runs/NAME.2, ..., and joins them as runs/NAME.csv:
#
#   export CAMVID=data/camvid MSRC21=data/msrc21 WEIGHTS=mobilenetv2_100_imagenet.safetensors
#   bash studies/reproduce.sh full presets           # some of them; without names all
#
# New parts come last, so that those of an earlier time keep their numbers.
#
# On a GPU, but for scenes, reach, mild and a part of rates, which ran on two CPU cores. What is finished is not run again.
# RUNS is another folder for results, CACSEG another command, MPS= (nothing) leaves NVIDIA's Multi-Process Service alone.
set -euo pipefail

[[ -f studies/full.toml ]] || { echo "must be run from the folder of the repository; this is $PWD" >&2; exit 2; }
all="full further unscaled recipe confirm strong presets fits reach mild rates rest ends late whole trained long candidates search scenes"
(($#)) || set -- $all
for name; do # is it there, and what does it need? Scenes are generated.
    case " $all " in *" $name "*) ;; *) echo "there is no study $name in $0" >&2; exit 2 ;; esac
    case $name in scenes | recipe | mild) ;; *) : "${CAMVID:?must be the folder of CamVid}" ;; esac
    case $name in scenes | whole | reach) ;; *) : "${MSRC21:?must be the folder of MSRC-21}" ;; esac
    case $name in scenes) ;; *) : "${WEIGHTS:?must be a file with ImageNet weights of MobileNetV2}" ;; esac
done
CAMVID=${CAMVID-} MSRC21=${MSRC21-} WEIGHTS=${WEIGHTS-}
RUNS=${RUNS:-runs}
if [[ -z ${CACSEG-} ]]; then # what is installed, or what `make` has set up
    CACSEG=$(command -v cacseg || echo .venv/bin/cacseg)
fi

# What the file of weights does not state; with others (`--set model.pretrained=true`) leave it out.
start=(--set "model.backbone_weights=$WEIGHTS" --set model.padding=same
    --set model.mean=0.5,0.5,0.5 --set model.std=0.5,0.5,0.5)
# All but `unscaled`, `recipe`, `confirm` and `strong` ran without images padded to the stride.
before=(--set model.pad_to_stride=false)
weights=("${start[@]}" "${before[@]}")
camvid=(--root "camvid=$CAMVID")
both=("${camvid[@]}" --root "msrc21=$MSRC21")
bf16=(--set training.precision=bf16)
gpu=("${weights[@]}" ${MPS---mps})
cpu=(--device cpu --jobs 2)

part=0
go() { # NAME OPTION...
    part=$((part + 1))
    "$CACSEG" study run "studies/$1.toml" "${@:2}" -o "$RUNS/$1.$part"
}

full() {
    go full "${both[@]}" "${gpu[@]}" --only optimisers=adamw --only arms=plain,paper,released,centred
    go full "${both[@]}" "${gpu[@]}" --only optimisers=adamw --only arms=residual --only data=msrc21
    go full "${both[@]}" "${gpu[@]}" --only optimisers=adamw --only arms=residual --only data=camvid --seeds 0,1
    go full "${both[@]}" "${gpu[@]}" --only optimisers=adamw --only arms=evened
    go full "${both[@]}" "${gpu[@]}" --only optimisers=adamw --only arms=tuned --only data=msrc21
    go full "${both[@]}" "${gpu[@]}" --only optimisers=adamw --only arms=plain_overlap
    go full "${both[@]}" "${gpu[@]}" --only optimisers=adamw --only arms=tuned --only data=camvid
}

presets() {
    local all=("${both[@]}" "${gpu[@]}") deeplab=(--only models=deeplabv3plus_mobilenetv2) fcn=(--only models=fcn_mobilenetv2)
    go presets "${all[@]}" --only arms=plain,paper,released,centred
    go presets "${all[@]}" --only arms=residual --seeds 0,1
    go presets "${all[@]}" --only arms=residual --seeds 2 --only data=camvid --steps 800 "${fcn[@]}"
    go presets "${all[@]}" --only arms=residual --seeds 2 --only data=camvid --steps 800 "${deeplab[@]}" --only optimisers=adamw
    go presets "${all[@]}" --only arms=detached,present,relative --only data=msrc21
    # more seeds where the gains are smallest
    all+=(--only arms=plain,centred --only optimisers=adamw --seeds 3,4,5)
    go presets "${all[@]}" "${fcn[@]}"
    go presets "${all[@]}" "${deeplab[@]}" --only data=camvid --steps 200
    go presets "${all[@]}" "${deeplab[@]}" --only data=msrc21 --steps 800
    go presets "${both[@]}" "${gpu[@]}" --only arms=evened "${fcn[@]}"
    local less=("${both[@]}" "${gpu[@]}" "${fcn[@]}" --only data=msrc21)
    go presets "${less[@]}" --only arms=relative_03,relative_01 --seeds 0,2
    go presets "${less[@]}" --only arms=relative_03,relative_01 --seeds 1 --only optimisers=adamw --steps 200
    go presets "${less[@]}" --only arms=relative_03 --seeds 1 --only optimisers=adamw --steps 800
    go presets "${less[@]}" --only arms=tuned
    go presets "${less[@]}" --only arms=tuned --only optimisers=adamw --seeds 3,4,5
    go presets "${both[@]}" "${gpu[@]}" "${deeplab[@]}" --only data=msrc21 --only arms=tuned --only optimisers=adamw --steps 800 \
        --seeds 3,4,5
    go presets "${less[@]}" --only arms=joined --only optimisers=adamw
    go presets "${both[@]}" "${gpu[@]}" "${fcn[@]}" --only data=camvid --only arms=plain_overlap --only optimisers=adamw --steps 800 \
        --seeds 0,1
    go presets "${both[@]}" "${gpu[@]}" "${fcn[@]}" --only data=camvid --only arms=tuned
    go presets "${both[@]}" "${gpu[@]}" "${deeplab[@]}" --only arms=tuned
    go presets "${less[@]}" --only arms=plain_overlap --only optimisers=adamw --steps 800
    go presets "${both[@]}" "${gpu[@]}" "${fcn[@]}" --only data=camvid --only arms=plain_overlap --only optimisers=adamw --steps 800 \
        --seeds 2
    go presets "${both[@]}" "${gpu[@]}" "${deeplab[@]}" --only data=camvid --only arms=tuned --only optimisers=adamw --steps 200 \
        --seeds 3,4,5
}

fits() {
    go fits "${both[@]}" "${gpu[@]}" --only arms=plain,paper,released,centred,fixed,evened
    go fits "${both[@]}" "${gpu[@]}" --only arms=detached,still,bias,slow --only data=msrc21
    go fits "${both[@]}" "${gpu[@]}" --only arms=slower --only data=msrc21 --steps 200
    go fits "${both[@]}" "${gpu[@]}" --only arms=half --only data=msrc21 --only optimisers=adamw
    go fits "${both[@]}" "${gpu[@]}" --only arms=relative --only data=msrc21
    go fits "${both[@]}" "${gpu[@]}" --only arms=tuned --only data=msrc21
    go fits "${both[@]}" "${gpu[@]}" --only arms=joined --only data=msrc21 --only optimisers=adamw
    go fits "${both[@]}" "${gpu[@]}" --only arms=tuned --only data=camvid
}

rates() {
    go rates "${both[@]}" "${gpu[@]}" "${bf16[@]}" --only data=camvid_held_out,msrc21 --only arms=plain,centred --steps 800
    local small=("${both[@]}" "${weights[@]}" "${cpu[@]}" --only data=camvid_held_out_small --steps 200)
    go rates "${small[@]}" --seeds 0 --only arms=plain,centred,residual
    go rates "${small[@]}" --seeds 0 --only arms=taught_00,fixed,slow --only optimisers=adamw,adamw_fast
    go rates "${small[@]}" --seeds 1,2 --only arms=plain,centred,fixed,slow --only optimisers=adamw_fast
    go rates "${small[@]}" --seeds 3,4,5 --only arms=plain,centred --only optimisers=adamw_fast
    local overlap=("${both[@]}" "${gpu[@]}" "${bf16[@]}" --only arms=tuned,plain_overlap --steps 800)
    go rates "${overlap[@]}" --only data=camvid_held_out
    go rates "${overlap[@]}" --only data=msrc21 --only optimisers=adamw_fast,sgd_fast
}

late() {
    go late "${both[@]}" "${gpu[@]}" "${bf16[@]}"
}

rest() {
    local all=("${both[@]}" "${gpu[@]}" "${bf16[@]}")
    go rest "${all[@]}" --only optimisers=adamw_fast
    go rest "${all[@]}" --only optimisers=adamw_fast \
        --only arms=plain,centred,detached,fixed,bias,taught_00,still,no_kl,fixed_no_kl,slow,slower,evened,two_evened --seeds 2
    go rest "${all[@]}" --only optimisers=sgd --only arms=plain,centred,third
}

ends() {
    local all=("${both[@]}" "${gpu[@]}" --only models=fcn_mobilenetv2)
    go ends "${all[@]}" --only data=camvid_held_out --steps 1000 --only \
        arms=plain,centred,detached,still,fixed,slow,present,relative,evened,two_evened
    go ends "${all[@]}" --only data=msrc21 --steps 2000 --only arms=plain,centred,detached,still,fixed,slow
    go ends "${all[@]}" --only data=camvid_held_out --steps 1000 --only arms=entropy,relative_01,relative_03,relative_3
    go ends "${all[@]}" --only data=camvid_held_out --steps 1000 --only arms=overlap,tuned,overlap_alone,plain_overlap
    go ends "${all[@]}" --only data=camvid_held_out --steps 1000 --only arms=aware,joined
    go ends "${all[@]}" --only data=camvid_held_out --steps 1000 --only arms=overlap_fine,plain_overlap_fine
    go ends "${both[@]}" "${gpu[@]}" --only models=deeplabv3plus_near --only data=camvid_held_out --steps 1000 \
        --only arms=plain,centred,tuned
    go ends "${all[@]}" --only data=camvid_held_out --steps 1000 --only arms=fixed_overlap
    go ends "${all[@]}" --only data=msrc21 --steps 2000 --only arms=fixed_overlap
}

further() {
    local all=("${both[@]}" "${gpu[@]}")
    local deeplab=(--only models=deeplabv3plus_near --only optimisers=adamw)
    go further "${all[@]}" --only data=camvid --steps 1000 "${deeplab[@]}" --only arms=plain,centred,evened
    go further "${all[@]}" --only data=msrc21 --steps 2000 "${deeplab[@]}" --only arms=plain,centred --seeds 0,1,2,3,4,5
    go further "${all[@]}" --only data=msrc21 --steps 2000 --only models=fcn_mobilenetv2 --only optimisers=sgd \
        --only arms=plain,released,centred,evened
    go further "${all[@]}" --only data=msrc21 --steps 2000 "${deeplab[@]}" --only arms=relative
    go further "${all[@]}" --only data=msrc21 --steps 2000 --only models=fcn_mobilenetv2 --only optimisers=sgd --only arms=relative
    go further "${all[@]}" --only data=camvid --steps 1000 "${deeplab[@]}" --only arms=paper,released
    go further "${all[@]}" --only data=msrc21 --steps 2000 "${deeplab[@]}" --only arms=paper,released
    go further "${all[@]}" --only data=msrc21 --steps 2000 "${deeplab[@]}" --only arms=tuned --seeds 0,1,2,3,4,5
    go further "${all[@]}" --only data=msrc21 --steps 2000 "${deeplab[@]}" --only arms=joined
    go further "${all[@]}" --only data=camvid --steps 1000 "${deeplab[@]}" --only arms=plain_overlap
    go further "${all[@]}" --only data=msrc21 --steps 2000 --only models=fcn_mobilenetv2 --only optimisers=sgd --only arms=tuned
    go further "${all[@]}" --only data=camvid --steps 1000 "${deeplab[@]}" --only arms=tuned
}

unscaled() {
    local all=("${both[@]}" "${start[@]}" ${MPS---mps}) fcn=(--only models=fcn_mobilenetv2)
    local unscaled=(--only data=msrc21_unscaled --steps 2000) adamw=(--only optimisers=adamw)
    go unscaled "${all[@]}" --only data=msrc21 --steps 2000 "${fcn[@]}" "${adamw[@]}" --only arms=plain,centred,half,relative
    local most=plain,paper,released,centred,fixed,half,present,present_fixed,relative,evened,two_evened
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" "${adamw[@]}" --only "arms=$most"
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" --only optimisers=sgd --only \
        arms=plain,paper,released,centred,present,relative,evened
    local deeplab=(--only models=deeplabv3plus_near "${adamw[@]}")
    go unscaled "${all[@]}" "${unscaled[@]}" "${deeplab[@]}" --only arms=plain,released,centred,present,relative,evened
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" "${adamw[@]}" --only arms=plain,centred,relative --seeds 3,4,5
    go unscaled "${all[@]}" "${unscaled[@]}" "${deeplab[@]}" --only arms=relative --seeds 3,4,5
    go unscaled "${all[@]}" --only data=camvid_held_out_unscaled --steps 1000 "${fcn[@]}" "${adamw[@]}" --only arms=plain,centred \
        --seeds 0,1
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" "${adamw[@]}" --only arms=relative_01,relative_03,relative_3
    go unscaled "${all[@]}" "${unscaled[@]}" "${deeplab[@]}" --only arms=paper
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" "${adamw[@]}" --only arms=overlap,tuned,overlap_alone,plain_overlap
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" "${adamw[@]}" --only arms=tuned --seeds 3,4,5
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" --only optimisers=sgd --only arms=tuned
    go unscaled "${all[@]}" "${unscaled[@]}" "${deeplab[@]}" --only arms=tuned
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" "${adamw[@]}" --only arms=aware,aware_5,joined
    go unscaled "${all[@]}" "${unscaled[@]}" "${deeplab[@]}" --only arms=aware,aware_5,joined
    go unscaled "${all[@]}" "${unscaled[@]}" "${fcn[@]}" "${adamw[@]}" --only arms=fixed_overlap
}

recipe() {
    go recipe --root "msrc21=$MSRC21" "${start[@]}" ${MPS---mps} --only arms=plain,paper,released,evened,centred
    go recipe --root "msrc21=$MSRC21" "${start[@]}" ${MPS---mps} --only arms=tuned
    go recipe --root "msrc21=$MSRC21" "${start[@]}" ${MPS---mps} --only arms=plain,centred,tuned --seeds 3,4,5
    go recipe --root "msrc21=$MSRC21" "${start[@]}" ${MPS---mps} --only arms=plain_overlap
}

confirm() {
    local all=("${both[@]}" "${start[@]}" ${MPS---mps}) ocrnet=(--only models=ocrnet_mobilenetv2)
    go confirm "${all[@]}" --only models=fcn_mobilenetv2 --only data=camvid_held_out --steps 4000
    go confirm "${all[@]}" "${ocrnet[@]}" --only data=msrc21_unscaled --steps 2000
    go confirm "${all[@]}" "${ocrnet[@]}" --only data=camvid_held_out --steps 1000
    go confirm "${all[@]}" --only models=upernet_mobilenetv2 --only data=msrc21_unscaled --steps 500
}

strong() {
    local all=("${both[@]}" "${start[@]}" ${MPS---mps}) held_out=(--only data=camvid_held_out --steps 1000)
    local deeplab=(--only models=deeplabv3plus_all)
    go strong "${all[@]}" --only models=fcn_all --only data=msrc21_unscaled --steps 2000 --only arms=plain,tuned
    go strong "${all[@]}" --only models=fcn_all "${held_out[@]}" --only arms=plain,tuned
    go strong "${all[@]}" "${deeplab[@]}" "${held_out[@]}" --only arms=plain,tuned --seeds 0
    go strong "${all[@]}" "${deeplab[@]}" "${held_out[@]}" --only arms=plain --seeds 1
    go strong "${all[@]}" --only models=upernet_mobilenetv2 --only data=msrc21_unscaled --steps 500
}

reach() {
    go reach "${camvid[@]}" "${weights[@]}" "${cpu[@]}"
}

mild() {
    go mild --root "msrc21=$MSRC21" "${weights[@]}" "${cpu[@]}"
}

whole() {
    go whole "${camvid[@]}" "${gpu[@]}" --seeds 0,1
    go whole "${camvid[@]}" "${gpu[@]}" --seeds 2 --only arms=plain,centred
}

trained() {
    go trained "${both[@]}" "${gpu[@]}" --seeds 0 \
        --only arms=plain,residual,kl_03,entropy,onehot,fading,balanced,fading_balanced,soft,fading_soft,frozen
    go trained "${both[@]}" "${gpu[@]}" --seeds 0 --only arms=centred --only data=msrc21
}

long() {
    local all=("${both[@]}" "${gpu[@]}") most=plain,residual,residual_06,residual_soft,residual_soft_scene
    go long "${all[@]}" --seeds 0 --only optimisers=adamw --only "arms=$most,released"
    go long "${all[@]}" --seeds 0 --only optimisers=sgd --only data=camvid_held_out --only "arms=$most,released"
    go long "${all[@]}" --seeds 0 --only optimisers=sgd --only data=msrc21 --only "arms=$most"
    go long "${all[@]}" --seeds 1 --only optimisers=adamw --only data=camvid_held_out --only "arms=$most"
    go long "${all[@]}" --seeds 1 --only optimisers=sgd --only data=camvid_held_out --only arms=plain
}

candidates() {
    local all=("${both[@]}" "${gpu[@]}" --set training.channels_last=true --only models=fcn_mobilenetv2 --seeds 0,1)
    go candidates "${all[@]}" --steps 400
    go candidates "${all[@]}" --steps 1600 --only optimisers=adamw --only arms=plain,released,residual_soft,residual_dot
}

search() {
    go search "${both[@]}" "${gpu[@]}" --only optimisers=adamw --only data=camvid_held_out --seeds 0
}

scenes() {
    local most=plain,paper,released,centred,residual,residual_soft,residual_relation,residual_annealed,fixed,half,twice,taught_00,still,slow,evened
    go scenes "${cpu[@]}" "${before[@]}" --only optimisers=adamw --only "arms=$most"
    go scenes "${cpu[@]}" "${before[@]}" --only optimisers=adamw_fast --only arms=plain,released,residual,centred,fixed,half,still,slow,evened
    go scenes "${cpu[@]}" --only arms=present,relative
    go scenes "${cpu[@]}" "${before[@]}" --only arms=entropy,unsure
    go scenes "${cpu[@]}" "${before[@]}" --only arms=oracle_3,oracle_03
    go scenes "${cpu[@]}" "${before[@]}" --only arms=tuned,plain_overlap
    go scenes "${cpu[@]}" "${before[@]}" --only arms=joined
    go scenes "${cpu[@]}" "${before[@]}" --only arms=overlap_fine
    go scenes "${cpu[@]}" "${before[@]}" --only arms=fixed_overlap
}

for name; do
    part=0
    "$name"
    "$CACSEG" study table "$RUNS/$name".[0-9]* --csv "$RUNS/$name.csv"
done
