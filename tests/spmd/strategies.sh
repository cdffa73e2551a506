# Sourced by tests/mpi/graphs.sh and tests/ucx/graphs.sh, which have defined `verify ARGUMENTS`: what runs on four ranks.
fixtures=$(cd "$(dirname "${BASH_SOURCE[0]}")/../fixtures" && pwd)
verify gpt --small --mesh dp=2,tp=2 --layout n:dp,heads:tp,ffn:tp --steps 2
verify moe --small --mesh a=4 --annotate "hidden groups:a; layer0.experts.up experts:a; layer0.experts.down experts:a"
verify vgg16 --small --mesh a=2,b=2 --layout h64:a,w64:b
verify lstm --small --mesh a=2,b=2 --random 3
verify "$fixtures/onnx/small.onnx" --mesh a=2,b=2 --random 10
"$trireme" --quiet search --graph gpt --cluster dgx2-v100 --gpus 4 --method rannc -o "$folder/gpt.plan" >/dev/null
verify gpt --small --batch 8 --plan "$folder/gpt.plan"
