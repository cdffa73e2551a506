// Shardings: conversions and strategies executed on arrays by ranks that hold only their parts, against the whole.
#include "trireme/plan/graph/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/graph/numeric.h"
#include "trireme/base/error.h"
#include "trireme/plan/graph/annotate.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/build.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

layout::Mesh mesh_of(const char* text) { return layout::parse_mesh(text); }

std::string steps_text(const layout::Mesh& mesh, const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) text += (text.empty() ? "" : "; ") + to_text(mesh, step);
  return text;
}

TEST(Convert, TakesTheCollectiveOfEachPairOfKinds) {
  const layout::Mesh mesh = mesh_of("a=2 b=4");
  const Sharding whole{{{}, {}}, {}}, rows{{{0}, {}}, {}}, columns{{{}, {0}}, {}}, partial{{{}, {}}, {0}};
  const double bytes = 1 << 20;
  EXPECT_EQ(steps_text(mesh, convert(mesh, bytes, whole, rows)), "slice over a");
  EXPECT_EQ(steps_text(mesh, convert(mesh, bytes, rows, whole)), "all-gather over a, 1 MiB");
  EXPECT_EQ(steps_text(mesh, convert(mesh, bytes, partial, whole)), "all-reduce over a, 1 MiB");
  EXPECT_EQ(steps_text(mesh, convert(mesh, bytes, partial, columns)), "reduce-scatter over a, 1 MiB");
  EXPECT_EQ(steps_text(mesh, convert(mesh, bytes, rows, columns)), "all-to-all over a, 512 KiB");
  EXPECT_THAT(convert(mesh, bytes, rows, rows), IsEmpty());
  // Two axes of one dimension are gathered at once; of [a, b] the outer one cannot go alone.
  EXPECT_EQ(steps_text(mesh, convert(mesh, bytes, {{{0, 1}, {}}, {}}, whole)), "all-gather over a.b, 1 MiB");
  EXPECT_EQ(steps_text(mesh, convert(mesh, bytes, {{{0, 1}, {}}, {}}, {{{1}, {}}, {}})),
            "all-gather over a.b, 1 MiB; slice over b");
}

/// Rank by rank: which box of the whole a sharding gives it.
std::vector<std::pair<Index, Index>> box_of(const layout::Mesh& mesh, const Sharding& sharding,
                                            const std::vector<Index>& shape, int rank) {
  std::vector<std::pair<Index, Index>> box;
  const std::vector<int> coordinates = mesh.coordinates(rank);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    Index block = 0, blocks = 1;
    for (const int axis : sharding.dims[i]) {
      const int size = mesh.axes()[static_cast<std::size_t>(axis)].size;
      block = block * size + coordinates[static_cast<std::size_t>(axis)];
      blocks *= size;
    }
    box.emplace_back(block * shape[i] / blocks, (block + 1) * shape[i] / blocks);
  }
  return box;
}

/// The part of a whole array that a rank has; of a partial sum its summand, made up so that the summands add up.
numeric::Array part_of(const layout::Mesh& mesh, const Sharding& sharding, const numeric::Array& whole, int rank) {
  const auto box = box_of(mesh, sharding, whole.shape, rank);
  std::vector<Index> sizes;
  for (const auto& [begin, end] : box) sizes.push_back(end - begin);
  numeric::Array part(sizes);
  double share = 1;
  int ranks = 1, index = 0;
  for (const int axis : sharding.partial) {
    const int size = mesh.axes()[static_cast<std::size_t>(axis)].size;
    ranks *= size;
    index = index * size + mesh.coordinates(rank)[static_cast<std::size_t>(axis)];
  }
  if (ranks > 1) share = 2.0 * (index + 1) / (ranks * (ranks + 1.0));  // summands differ
  numeric::for_each_place(sizes, [&](const std::vector<Index>& place) {
    std::vector<Index> at = place;
    for (std::size_t i = 0; i < at.size(); ++i) at[i] += box[i].first;
    part.data[part.at(place)] = share * whole.data[whole.at(at)];
  });
  return part;
}

/// One step of a conversion, executed: every rank has its part before and gets its part after it. Only what a
/// collective over these axes may touch is touched.
std::vector<numeric::Array> take_step(const layout::Mesh& mesh, const Step& step,
                                      const std::vector<numeric::Array>& parts) {
  layout::AxisNames names;
  for (const int axis : step.axes) names.push_back(mesh.axes()[static_cast<std::size_t>(axis)].name);
  std::vector<numeric::Array> result(parts.size());
  const auto cut = [](const numeric::Array& from, int dim, Index block, Index blocks) {
    std::vector<Index> sizes = from.shape;
    sizes[static_cast<std::size_t>(dim)] /= blocks;
    numeric::Array part(sizes);
    numeric::for_each_place(sizes, [&](const std::vector<Index>& place) {
      std::vector<Index> at = place;
      at[static_cast<std::size_t>(dim)] += block * sizes[static_cast<std::size_t>(dim)];
      part.data[part.at(place)] = from.data[from.at(at)];
    });
    return part;
  };
  const auto join = [](const std::vector<numeric::Array>& pieces, int dim) {
    std::vector<Index> sizes = pieces[0].shape;
    const Index each = sizes[static_cast<std::size_t>(dim)];
    sizes[static_cast<std::size_t>(dim)] *= static_cast<Index>(pieces.size());
    numeric::Array whole(sizes);
    numeric::for_each_place(sizes, [&](const std::vector<Index>& place) {
      std::vector<Index> at = place;
      const Index piece = at[static_cast<std::size_t>(dim)] / each;
      at[static_cast<std::size_t>(dim)] %= each;
      const numeric::Array& from = pieces[static_cast<std::size_t>(piece)];
      whole.data[whole.at(place)] = from.data[from.at(at)];
    });
    return whole;
  };
  for (const std::vector<int>& group : mesh.groups(names)) {
    const auto ranks = static_cast<Index>(group.size());
    for (std::size_t i = 0; i < group.size(); ++i) {
      const auto rank = static_cast<std::size_t>(group[i]);
      numeric::Array mine = parts[rank];
      if (step.kind == StepKind::kAllReduce || step.kind == StepKind::kReduceScatter) {
        std::ranges::fill(mine.data, 0.0);
        for (const int other : group) {
          for (std::size_t k = 0; k < mine.data.size(); ++k) mine.data[k] += parts[std::size_t(other)].data[k];
        }
      }
      if (step.kind == StepKind::kAllGather || step.kind == StepKind::kAllToAll) {
        std::vector<numeric::Array> pieces;
        for (const int other : group) pieces.push_back(parts[static_cast<std::size_t>(other)]);
        mine = join(pieces, step.from_dim);
      }
      if (step.to_dim >= 0) mine = cut(mine, step.to_dim, static_cast<Index>(i), ranks);
      result[rank] = std::move(mine);
    }
  }
  return result;
}

Sharding random_sharding(const Random& random, std::uint64_t& draw, std::size_t dims, std::size_t axes, bool partial) {
  Sharding sharding;
  sharding.dims.resize(dims);
  for (int axis = 0; axis < static_cast<int>(axes); ++axis) {
    const std::uint64_t choice = random.below(dims + 2, draw++);
    if (choice < dims) sharding.dims[choice].push_back(axis);
    if (choice == dims && partial) sharding.partial.push_back(axis);
  }
  return sharding;
}

TEST(Convert, StepByStepOnArraysGivesEveryRankItsPart) {
  const layout::Mesh mesh = mesh_of("a=2 b=3 c=2");
  numeric::Array whole({12, 12, 12});
  const Random random(7, "convert");
  for (std::size_t i = 0; i < whole.data.size(); ++i) whole.data[i] = random.normal(i);
  std::uint64_t draw = 0;
  for (int round = 0; round < 200; ++round) {
    const Sharding from = random_sharding(random, draw, 3, 3, true), to = random_sharding(random, draw, 3, 3, false);
    std::vector<numeric::Array> parts;
    for (int rank = 0; rank < mesh.ranks(); ++rank) parts.push_back(part_of(mesh, from, whole, rank));
    const std::vector<Step> steps = convert(mesh, static_cast<double>(8 * whole.data.size()), from, to);
    for (const Step& step : steps) {
      const std::size_t before = parts[0].data.size();
      parts = take_step(mesh, step, parts);
      // Bytes as cost/collectives.h counts them: of the longer side, or of what a rank puts in.
      const std::size_t counted = step.kind == StepKind::kAllGather ? parts[0].data.size() : before;
      EXPECT_EQ(step.bytes, step.kind == StepKind::kSlice ? 0.0 : static_cast<double>(8 * counted));
    }
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const numeric::Array expected = part_of(mesh, to, whole, rank);
      const numeric::Array& got = parts[static_cast<std::size_t>(rank)];
      ASSERT_EQ(got.shape, expected.shape) << to_text(mesh, from) << " to " << to_text(mesh, to);
      for (std::size_t k = 0; k < got.data.size(); ++k) ASSERT_NEAR(got.data[k], expected.data[k], 1e-12);
    }
  }
}

TEST(Convert, RefusesAxesOutOfTheMeshsOrder) {
  // Of [b, a] a group's ranks would not be in the order of their blocks: no operator makes such a sharding.
  const Sharding good{{{0, 1}, {}}, {}}, bad{{{1, 0}, {}}, {}}, whole{{{}, {}}, {}};
  EXPECT_NO_THROW(convert(mesh_of("a=2 b=2"), 16, good, whole));
  EXPECT_THROW(convert(mesh_of("a=2 b=2"), 16, bad, whole), InternalError);
  EXPECT_THROW(convert(mesh_of("a=2 b=2"), 16, whole, bad), InternalError);
}

/// Matrix products, a bias, a residual, a shared weight: what the reference can run by parts.
Graph dense_net() {
  Builder build("dense");
  const int n = build.dim("n", 4), classes = build.dim("classes", 4), model = build.dim("model", 8);
  const int inner = build.dim("inner", 8);
  int x = build.input("x", {n, build.dim("in", 4)});
  x = build.linear("embed", x, model);
  const int y = build.elementwise("tanh", "tanh", {build.linear("up", x, inner)});
  x = build.elementwise("add", "add", {build.linear("down", y, model), x});
  x = build.linear("head", x, classes);
  build.loss("loss", x, build.indices("labels", {n}), classes);
  return build.finish();
}

/// Runs a strategy: ranks compute on their parts of what lies as the lowering says, an operator at a time. Operators
/// that have statistics (the loss) are run whole and dealt out.
numeric::Values run_sharded(const Graph& both, const Strategy& strategy, const numeric::Values& start) {
  const layout::Mesh& mesh = strategy.mesh;
  const auto ranks = static_cast<std::size_t>(mesh.ranks());
  std::vector<IterationSpace> spaces;
  for (const Op& op : both.ops) spaces.push_back(iteration_space(both, op));
  struct Laid {
    Sharding sharding;
    std::vector<numeric::Array> parts;
  };
  std::map<int, Laid> laid;
  const auto split_of = [&](const Op& op, std::size_t index) -> const Split& {
    return strategy.splits[op.forward >= 0 ? static_cast<std::size_t>(op.forward) : index];
  };
  const auto assembled = [&](int tensor) {
    Laid now = laid.at(tensor);
    const Sharding whole{std::vector<MeshAxes>(now.sharding.dims.size()), {}};
    for (const Step& step : convert(mesh, 1, now.sharding, whole)) now.parts = take_step(mesh, step, now.parts);
    return now.parts[0];
  };
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const Op& op = both.ops[i];
    std::vector<std::vector<numeric::Array>> inputs;
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      const Sharding need = input_sharding(spaces[i], split_of(op, i), k);
      if (both.tensor(op.inputs[k]).role != Role::kActivation) {
        auto& parts = inputs.emplace_back();
        for (std::size_t r = 0; r < ranks; ++r) parts.push_back(part_of(mesh, need, start.at(op.inputs[k]), int(r)));
        continue;
      }
      Laid now = laid.at(op.inputs[k]);
      for (const Step& step : convert(mesh, 1, now.sharding, need)) now.parts = take_step(mesh, step, now.parts);
      inputs.push_back(std::move(now.parts));
    }
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      laid[op.outputs[k]].sharding = output_sharding(spaces[i], split_of(op, i), k);
    if (op.kind == OpKind::kSoftmaxLoss) {
      numeric::Values values = start;
      for (const int input : op.inputs) {
        if (both.tensor(input).role == Role::kActivation) values[input] = assembled(input);
      }
      numeric::run_op(both, op, values);
      Laid& out = laid[op.outputs[0]];
      for (std::size_t r = 0; r < ranks; ++r)
        out.parts.push_back(part_of(mesh, out.sharding, values.at(op.outputs[0]), static_cast<int>(r)));
      continue;
    }
    // Sizes of a rank's part: a graph of its own, with the dimensions that this operator splits made smaller.
    Graph local = both;
    const std::vector<int> degrees = degrees_of(mesh, spaces[i], split_of(op, i));
    for (std::size_t place = 0; place < degrees.size(); ++place)
      local.dims[static_cast<std::size_t>(spaces[i].dims[place].dim)].size /= degrees[place];
    const int forward_output = op.forward >= 0 ? both.op(op.forward).outputs[0] : -1;
    for (std::size_t r = 0; r < ranks; ++r) {
      numeric::Values values;
      for (std::size_t k = 0; k < op.inputs.size(); ++k) values[op.inputs[k]] = inputs[k][r];
      if (op.part == Part::kBackward && !values.contains(forward_output) && forward_output >= 0)
        values[forward_output] = laid.at(forward_output).parts[r];
      Op mine = op;
      // A bias is added once: by the first of the ranks that hold summands.
      const Sharding& out = laid[op.outputs[0]].sharding;
      for (const int axis : out.partial) {
        if (op.bias && mesh.coordinates(static_cast<int>(r))[static_cast<std::size_t>(axis)] != 0)
          std::ranges::fill(values[op.inputs.back()].data, 0.0);
      }
      numeric::run_op(local, mine, values);
      for (const int output : op.outputs) laid[output].parts.push_back(values.at(output));
    }
  }
  numeric::Values result;
  for (auto& [tensor, parts] : laid) result[tensor] = assembled(tensor);
  return result;
}

TEST(Strategy, RandomOnesComputeTheSameLossAndGradientsAsTheWhole) {
  const Graph forward = dense_net(), both = with_backward(forward);
  const layout::Mesh mesh = mesh_of("a=2 b=2");
  const numeric::Values start = numeric::random_values(forward, 3), expected = numeric::run(both, start);
  const Random random(11, "strategies");
  std::uint64_t draw = 0;
  int tried = 0;
  while (tried < 200) {
    Strategy strategy = replicated(forward, mesh);
    for (std::size_t i = 0; i < forward.ops.size(); ++i) {
      const IterationSpace space = iteration_space(forward, forward.ops[i]);
      for (int& at : strategy.splits[i]) {
        const std::uint64_t choice = random.below(space.dims.size() + 1, draw++);
        if (choice < space.dims.size() && space.dims[choice].kind != DimKind::kWhole) at = space.dims[choice].dim;
      }
    }
    if (!find_problems(both, strategy).empty()) continue;
    ++tried;
    const numeric::Values got = run_sharded(both, strategy, start);
    for (const auto& [tensor, array] : got) {
      for (std::size_t k = 0; k < array.data.size(); ++k)
        ASSERT_NEAR(array.data[k], expected.at(tensor).data[k], 1e-9) << both.tensor(tensor).name << "\n"
                                                                      << to_text(forward, strategy);
    }
    EXPECT_EQ(parse_strategy(forward, to_text(forward, strategy), "text"), strategy);
  }
}

TEST(Halo, IsTheRowsThatAKernelReachesOverTheBorder) {
  Builder build("halo");
  const int n = build.dim("n", 2), c = build.dim("c", 3);
  int x = build.input("image", {n, c, build.dim("h16", 16), build.dim("w16", 16)});
  x = build.convolution("conv1", x, {.channels = 4, .kernel = {3, 3}, .padding = {1, 1}});
  x = build.convolution("conv2", x, {.channels = 4, .kernel = {5, 5}, .stride = {2, 2}, .padding = {2, 2}});
  x = build.global_average("pool", x);
  build.loss("loss", x, build.indices("labels", {n}), build.dims_of(x)[1]);
  const Graph both = with_backward(build.finish());
  const layout::Mesh mesh = mesh_of("a=4");
  const auto halo = [&](const char* name, const char* dim) {
    const Op& op = both.op(both.find_op(name));
    const IterationSpace space = iteration_space(both, op);
    const auto exchanges = exchanges_of(both, mesh, op, space, {both.find_dim(dim)});
    return exchanges.empty() ? 0.0 : exchanges[0].step.bytes;
  };
  // A row of a rank: 2 samples, 3 or 4 channels, 16 columns, 4 bytes. A rank in the middle gets one row from each side.
  EXPECT_EQ(halo("conv1", "h16"), 2 * (2 * 3 * 16 * 4));
  EXPECT_EQ(halo("conv1.backward_weight", "h16"), 2 * (2 * 3 * 16 * 4));
  // 5 rows every 2: two before its own, one after.
  EXPECT_EQ(halo("conv2", "h8"), 3 * (2 * 4 * 16 * 4));
  EXPECT_EQ(halo("conv2.backward_data", "h8"), 2 * (2 * 4 * 8 * 4)) << "of the gradient, one row of 8 from each side";
  EXPECT_EQ(halo("conv1", "n"), 0);
  const Op& conv = both.op(both.find_op("conv2"));
  const std::string why = why_not(both, mesh_of("a=8"), conv, iteration_space(both, conv), {both.find_dim("h8")});
  EXPECT_EQ(why, "") << "two rows each, halos of two";
  EXPECT_THAT(why_not(both, mesh_of("a=3"), conv, iteration_space(both, conv), {both.find_dim("h8")}),
              HasSubstr("3 parts do not divide the 8 of h8"));
}

TEST(MeshTensorFlow, EveryLegalLayoutOfATwoLayerNetComputesTheSame) {
  const Graph forward = dense_net(), both = with_backward(forward);
  const layout::Mesh mesh = mesh_of("rows=2 cols=2");
  const numeric::Values start = numeric::random_values(forward, 5), expected = numeric::run(both, start);
  int legal = 0, illegal = 0;
  for (const char* a : {"n", "in", "model", "inner", "classes"}) {
    for (const char* b : {"", "n:cols", "in:cols", "model:cols", "inner:cols", "classes:rows", "inner:rows"}) {
      MeshLayout layout = parse_mesh_layout(b);
      if (!layout.emplace(a, "rows").second) continue;
      try {
        const Strategy strategy = mesh_tensorflow(forward, mesh, layout);
        const numeric::Values got = run_sharded(both, strategy, start);
        for (const auto& [tensor, array] : got) {
          for (std::size_t k = 0; k < array.data.size(); ++k)
            ASSERT_NEAR(array.data[k], expected.at(tensor).data[k], 1e-9)
                << both.tensor(tensor).name << " " << a << " " << b;
        }
        ++legal;
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.message(), HasSubstr("which the layout both splits along axis rows"));
        ++illegal;
      }
    }
  }
  EXPECT_GT(legal, 20);
  EXPECT_GT(illegal, 3);
}

TEST(MeshTensorFlow, InsertsAnAllReduceForEachContractedSplitAndNamesWhatIsIllegal) {
  const Graph forward = dense_net(), both = with_backward(forward);
  const layout::Mesh mesh = mesh_of("tp=2");
  const Strategy strategy = mesh_tensorflow(forward, mesh, {{"inner", "tp"}});
  EXPECT_EQ(to_text(both, strategy, lower(both, strategy)),
            "forward   before add: down.out all-reduce over tp, 128 B\n"
            "backward  before embed.out.grad.sum: embed.out.grad.1 all-reduce over tp, 128 B\n");
  try {
    mesh_tensorflow(forward, mesh, {{"inner", "tp"}, {"model", "tp"}});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("tensor up.weight has the dimensions model and inner"));
  }
}

TEST(GShard, AnnotationsOfAFewTensorsSplitTheGraphAndAnUnannotatedOneStaysWhole) {
  const Graph forward = moe({.groups = 4, .tokens = 8, .hidden = 8, .heads = 2, .ffn = 16, .experts = 4});
  const layout::Mesh mesh = mesh_of("a=4");
  EXPECT_EQ(propagate(forward, mesh, {}), replicated(forward, mesh));
  const Strategy strategy = propagate(
      forward, mesh, parse_annotations("hidden groups:a; layer0.experts.up experts:a; layer0.experts.down experts:a"));
  const auto split = [&](const char* op) {
    return to_text(forward, mesh, strategy.splits[static_cast<std::size_t>(forward.find_op(op))]);
  };
  EXPECT_EQ(split("layer0.attention"), "groups:a");
  EXPECT_EQ(split("layer0.dispatch"), "groups:a");
  EXPECT_EQ(split("layer0.expert_up"), "experts:a");
  EXPECT_EQ(split("layer0.relu"), "experts:a");
  EXPECT_EQ(split("layer0.combine"), "groups:a");
  const Graph both = with_backward(forward);
  EXPECT_THAT(find_problems(both, strategy), IsEmpty());
  int all_to_alls = 0, others = 0;
  for (const Inserted& inserted : lower(both, strategy).inserted) {
    if (inserted.phase == Phase::kUpdate) continue;
    ++(inserted.step.kind == StepKind::kAllToAll ? all_to_alls : others);
  }
  EXPECT_EQ(all_to_alls, 4) << "dispatch and combine, forward and backward";
  EXPECT_EQ(others, 0);
}

TEST(ParseStrategy, SaysWhichLineIsWrong) {
  const Graph forward = dense_net();
  const auto error_of = [&](const std::string& text) -> std::string {
    try {
      parse_strategy(forward, text, "plan.txt");
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(error_of("strategy other\n"), HasSubstr("the strategy is for other"));
  EXPECT_THAT(error_of("strategy dense\nmesh a=2\nupp n:a\n"), HasSubstr("did you mean \"up\""));
  EXPECT_THAT(error_of("strategy dense\nmesh a=2\nup n:b\n"), HasSubstr("plan.txt, line 3: the mesh has no axis b"));
  EXPECT_EQ(error_of("strategy dense\nmesh a=2\nup n:a\n"), "");
  Strategy strategy = parse_strategy(forward, "strategy dense\nmesh a=2\nup classes:a\n", "plan.txt");
  EXPECT_THAT(find_problems(forward, strategy),
              ElementsAre("operator up cannot be split along classes: it has no such dimension"));
}

}  // namespace
}  // namespace trireme::plan::graph
