// Skip connections across stages: a U-shaped chain as a pipeline computes what it computes on one rank.
#include "trireme/pipeline/portals.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"

namespace trireme::pipeline {
namespace {

constexpr std::int64_t kWidth = 6;

/// y = tanh(x w), and on the way down it also hands y on; on the way up it adds what it takes, times two. The last
/// one's sum of squares is the loss.
class Arm final : public nn::SkipLayer {
 public:
  Arm(nn::Param& weight, std::string gives, std::string takes, bool last)
      : weight_(weight), gives_(std::move(gives)), takes_(std::move(takes)), last_(last) {}

  nn::Tensors forward(nn::Tensors inputs, nn::Context& context, nn::Tape* tape) override {
    at::Tensor x = inputs[0];
    if (!takes_.empty()) x = x + 2 * skips().take(takes_);
    const at::Tensor y = at::tanh(at::matmul(x, context.value(weight_)));
    if (tape != nullptr) tape->push({x, y});
    if (!gives_.empty()) skips().give(gives_, y);
    if (last_) context.losses.push_back({"loss", y.square().sum().item<double>(), static_cast<double>(y.numel())});
    return {y};
  }
  nn::Tensors backward(nn::Tensors gradients, nn::Context& context, nn::Tape& tape) override {
    auto [x, y] = tape.pop<2>();
    at::Tensor dy = last_ ? 2 * context.gradient_scale * y : gradients[0];
    if (!gives_.empty()) dy = dy + skips().take_back(gives_);
    const at::Tensor dz = dy * (1 - y * y);
    tape.weight_gradient([this, x, dz] { nn::add_gradient(weight_, at::matmul(x.t(), dz)); });
    const at::Tensor dx = at::matmul(dz, context.value(weight_).t());
    if (!takes_.empty()) skips().give_back(takes_, 2 * dx);
    return {dx};
  }
  std::vector<std::string> gives() const override { return gives_.empty() ? Names{} : Names{gives_}; }
  std::vector<std::string> takes() const override { return takes_.empty() ? Names{} : Names{takes_}; }

 private:
  using Names = std::vector<std::string>;
  nn::Param& weight_;
  std::string gives_, takes_;
  bool last_;
};

/// Entry i of n hands to entry n-1-i.
std::unique_ptr<Arm> make_arm(int entry, int entries, nn::Param& weight) {
  const int depth = std::min(entry, entries - 1 - entry);
  const std::string name = "arm." + std::to_string(depth);
  const bool down = entry < entries / 2, up = entry >= (entries + 1) / 2;
  return std::make_unique<Arm>(weight, down ? name : "", up ? name : "", entry == entries - 1);
}

std::string weight_name(int entry) { return "entry." + std::to_string(entry); }

void add_weight(nn::Params& params, int entry) {
  params.add(weight_name(entry), {kWidth, kWidth}, {nn::Init::Kind::kNormal, 0.4}, true);
}

Micro make_numbers(int micro) {
  Micro made;
  made.inputs = {at::empty({2 + micro % 3, kWidth}, at::kDouble)};
  for (std::int64_t i = 0; i < made.inputs[0].numel(); ++i) {
    made.inputs[0].data_ptr<double>()[i] =
        static_cast<double>(number(static_cast<std::uint64_t>(micro), static_cast<std::uint64_t>(i), 1000)) / 500 - 1;
  }
  made.context.gradient_scale = 0.25;
  return made;
}

BoundaryTensor crossing_of(const Micro& micro) { return {micro.inputs[0].sizes().vec(), at::kDouble}; }

struct Ended {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

Ended run_alone(int entries, int micros) {
  nn::Params params;
  std::vector<std::unique_ptr<Arm>> chain;
  for (int i = 0; i < entries; ++i) add_weight(params, i);
  for (int i = 0; i < entries; ++i) chain.push_back(make_arm(i, entries, params.at(weight_name(i))));
  nn::initialise(params, nn::Precision::kFp64, 3);
  Ended ended;
  for (int m = 0; m < micros; ++m) {
    Micro micro = make_numbers(m);
    nn::Skips skips;
    for (const auto& layer : chain) layer->use(skips);
    nn::Tape tape;
    nn::Tensors x = micro.inputs;
    for (const auto& layer : chain) x = layer->forward(std::move(x), micro.context, &tape);
    x.assign(1, at::Tensor());
    for (auto layer = chain.rbegin(); layer != chain.rend(); ++layer) {
      x = (*layer)->backward(std::move(x), micro.context, tape);
    }
    ended.loss += micro.context.losses.at(0).sum;
  }
  for (const nn::Param& param : params) ended.gradients[param.name] = param.gradient.clone();
  return ended;
}

Ended run_as_pipeline(int entries, const schedule::Schedule& table, std::int64_t* between = nullptr) {
  Ended ended;
  std::mutex mutex;
  comm::run_ranks(
      static_cast<int>(table.ranks.size()),
      [&](comm::Rank& rank) {
        at::set_num_threads(1);
        std::vector<std::string> names;
        for (int i = 0; i < entries; ++i) names.push_back(weight_name(i));
        const Split split = split_by_count(names, table.chunks());
        Stage stage;
        stage.model = std::make_unique<models::Model>();
        nn::Params& params = stage.model->params;
        std::vector<std::unique_ptr<Arm>> all;  // to know the skips: every rank does
        nn::Params nowhere;
        for (int i = 0; i < entries; ++i) add_weight(nowhere, i);
        for (int i = 0; i < entries; ++i) all.push_back(make_arm(i, entries, nowhere.at(weight_name(i))));
        std::vector<const nn::Layer*> chain;
        for (const auto& layer : all) chain.push_back(layer.get());
        const std::vector<int> held = schedule::chunks_of(table, rank.rank());
        for (const int chunk : held) {
          for (std::size_t i = split[static_cast<std::size_t>(chunk)].begin;
               i < split[static_cast<std::size_t>(chunk)].end; ++i) {
            add_weight(params, static_cast<int>(i));
          }
        }
        for (const int number : held) {
          Chunk& chunk = stage.chunks.emplace_back(Chunk{.number = number});
          for (std::size_t i = split[static_cast<std::size_t>(number)].begin;
               i < split[static_cast<std::size_t>(number)].end; ++i) {
            nn::Param& weight = params.at(names[i]);
            stage.model->layers.push_back({names[i], make_arm(static_cast<int>(i), entries, weight), {&weight}});
            chunk.layers.push_back(stage.model->layers.back().layer.get());
            chunk.params.push_back(&weight);
          }
        }
        for (int chunk = 0; chunk < table.chunks(); ++chunk) {
          for (std::size_t i = split[static_cast<std::size_t>(chunk)].begin;
               i < split[static_cast<std::size_t>(chunk)].end; ++i) {
            stage.param_holders.push_back({names[i], {chunk}, schedule::holders_of(table, chunk)});
          }
        }
        stage.boundaries = [](int, const Micro& micro) { return std::vector<BoundaryTensor>{crossing_of(micro)}; };
        stage.skips =
            find_skips(chain, split, [](const std::string&, const Micro& micro) { return crossing_of(micro); });
        nn::initialise(params, nn::Precision::kFp64, 3);
        Executor executor({.table = table, .stage = stage, .pipeline = rank.world()});
        const RunReport report = executor.run({.micro = make_numbers, .update = [](int) {}});
        const std::lock_guard lock(mutex);
        ended.loss = nn::sum_of(report.steps.at(0).losses);
        for (const nn::Param& param : params) ended.gradients[param.name] = param.gradient.clone();
        if (between != nullptr && rank.rank() == 1) {
          *between = static_cast<std::int64_t>(rank.world().counters(comm::Op::kSend).sent_bytes);
        }
      },
      quiet());
  return ended;
}

void expect_equal_ends(const Ended& a, const Ended& b) {
  EXPECT_NEAR(a.loss, b.loss, 1e-12 * std::abs(a.loss));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, gradient] : a.gradients) {
    EXPECT_TRUE(at::allclose(gradient, b.gradients.at(name), 1e-12, 1e-13)) << name;
  }
}

TEST(Portals, UShapedChainEqualsOneRank) {
  for (const char* kind : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "chimera"}) {
    SCOPED_TRACE(kind);
    const int chunks = std::max(schedule::find_kind(kind).default_chunks, kind == std::string("interleaved") ? 2 : 1);
    for (const int ranks : {2, 4}) {
      const auto table = table_of(kind, {.ranks = ranks, .micros = 8, .chunks_per_rank = chunks});
      for (const int entries : {8, 11}) expect_equal_ends(run_alone(entries, 8), run_as_pipeline(entries, table));
    }
  }
}

TEST(Portals, SurviveRecomputation) {
  const auto table = table_of("1f1b", {.ranks = 4, .micros = 6, .recompute = true});
  expect_equal_ends(run_alone(9, 6), run_as_pipeline(9, table));
}

/// Rank 1 of 3 has both neighbours of the longest arm beside it, and sends no more than its own activations, gradients.
TEST(Portals, StagesBetweenCarryNothing) {
  const auto table = table_of("1f1b", {.ranks = 3, .micros = 3});
  std::int64_t bytes = 0;
  run_as_pipeline(3, table, &bytes);
  std::int64_t activations = 0;
  for (int micro = 0; micro < 3; ++micro) activations += make_numbers(micro).inputs[0].numel() * 8;
  EXPECT_EQ(bytes, 2 * activations);  // forward to rank 2, back to rank 0
}

TEST(Portals, NameSkipsThatLeadNowhere) {
  nn::Params params;
  for (int i = 0; i < 3; ++i) add_weight(params, i);
  const auto message = [&](std::vector<std::pair<std::string, std::string>> arms) {
    std::vector<std::unique_ptr<Arm>> layers;
    std::vector<const nn::Layer*> chain;
    for (auto& [gives, takes] : arms) {
      layers.push_back(std::make_unique<Arm>(params.at("entry.0"), gives, takes, false));
      chain.push_back(layers.back().get());
    }
    try {
      find_skips(chain, {{0, 1}, {1, 2}, {2, 3}}, nullptr);
    } catch (const ConfigError& error) {
      return error.message();
    }
    return std::string("no error");
  };
  using testing::HasSubstr;
  EXPECT_EQ(message({{"a", ""}, {"", ""}, {"", "a"}}), "no error");
  EXPECT_THAT(message({{"a", ""}, {"", ""}, {"", ""}}), HasSubstr("no later entry of the model takes it"));
  EXPECT_THAT(message({{"", "a"}, {"a", ""}, {"", ""}}), HasSubstr("no entry before it gives"));
  EXPECT_THAT(message({{"a", ""}, {"a", ""}, {"", "a"}}), HasSubstr("two entries of the model give"));
  EXPECT_THAT(message({{"a", ""}, {"", "a"}, {"", "a"}}), HasSubstr("another takes already"));
}

}  // namespace
}  // namespace trireme::pipeline
