// Decoder layers with experts as GShard writes them (Lepikhin 2020, 2006.16668): tokens in groups, top-2 gating with a
// capacity, dispatch and combine as einsums. Splitting groups before and experts after dispatch is an all-to-all.
#include <fmt/format.h>

#include <cmath>

#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {

Graph moe(const MoeShape& shape) {
  Builder build("moe");
  const int groups = build.dim("groups", shape.groups), tokens = build.dim("tokens", shape.tokens);
  const int model = build.dim("model", shape.hidden), heads = build.dim("heads", shape.heads);
  const int units = build.dim("head_dim", shape.hidden / shape.heads), ffn = build.dim("ffn", shape.ffn);
  const int experts = build.dim("experts", shape.experts);
  const double share = shape.capacity_factor * static_cast<double>(shape.tokens) / static_cast<double>(shape.experts);
  const int slots = build.dim("slots", std::max<Index>(1, static_cast<Index>(std::ceil(share))));
  int x = build.input("hidden", {groups, tokens, model});
  const int classes = build.dim("classes", shape.hidden);
  for (Index layer = 0; layer < shape.layers; ++layer) {
    const std::string name = fmt::format("layer{}", layer);
    int y = build.layer_norm(name + ".norm1", x);
    const int three = build.dim("qkv", 3), one = build.dim("one", 1);
    const int fused = build.dense(name + ".qkv", y, {model}, {three, heads, units}, false);
    std::vector<int> qkv;
    for (const int part : build.split(name + ".split", fused, three, {one, one, one}))
      qkv.push_back(build.reshape(fmt::format("{}.part{}", name, qkv.size()), part, {{{tokens, one}, {tokens}}}));
    y = build.attention(name + ".attention", qkv[0], qkv[1], qkv[2], "causal");
    y = build.dense(name + ".projection", y, {heads, units}, {model}, false);
    x = build.elementwise(name + ".add1", "add", {x, y});
    y = build.layer_norm(name + ".norm2", x);
    const int logits = build.linear(name + ".gate", y, experts, false);
    const int combine = build.router(name + ".router", logits, slots, "top2");
    // GSEC,GSM->EGCM; EGCM,EMH->EGCH; ReLU; EGCH,EHM->EGCM; GSEC,EGCM->GSM
    y = build.einsum(name + ".dispatch", {combine, y}, {experts, groups, slots, model});
    const int up = build.parameter(name + ".experts.up", {experts, model, ffn});
    const int down = build.parameter(name + ".experts.down", {experts, ffn, model});
    y = build.einsum(name + ".expert_up", {y, up}, {experts, groups, slots, ffn});
    y = build.elementwise(name + ".relu", "relu", {y});
    y = build.einsum(name + ".expert_down", {y, down}, {experts, groups, slots, model});
    y = build.einsum(name + ".combine", {combine, y}, {groups, tokens, model});
    x = build.elementwise(name + ".add2", "add", {x, y});
  }
  x = build.linear("head", x, classes, false);
  build.loss("loss", x, build.indices("labels", {groups, tokens}), classes);
  return build.finish();
}

}  // namespace trireme::plan::graph
