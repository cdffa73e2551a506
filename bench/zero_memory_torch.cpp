// bench/zero_memory_torch.cpp -- what a rank keeps for the whole run with ZeRO 0 to 3, measured, beside the paper's
// formulas.
//
//   build/release/bench/zero_memory_torch [--ranks 2,4,8] [--num-layers 6 --hidden-size 384]
//
// With P parameters and N ranks, in bf16: weights 2P, gradients 4P (ours are summed in fp32; the paper's are fp16 and
// 2P), optimizer 12P (master, two moments). Stage 1 divides the optimizer by N, stage 2 gradients too, stage 3 all
// three (Rajbhandari et al. 2019, figure 1). In fp32 weights are their own masters: 4P, 4P and 8P. Buckets are room for
// what is gathered or on its way, and come on top. "all tensors" is what this rank's thread holds after a step by its
// allocator's count: nothing is forgotten in the categories. Exact numbers: how busy the machine is does not matter.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/arguments.h"
#include "bench/gpt_recipe.h"
#include "bench/tensor_bytes.h"
#include "trireme/base/text.h"
#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/nn/state.h"
#include "trireme/optim/update.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/recipe_layout.h"
#include "trireme/train/engine/trainer.h"

namespace {

using namespace trireme;

struct Options {
  bench::GptSize size{.num_layers = 6, .hidden_size = 384, .seq_len = 64};
  std::vector<int> ranks{2, 4, 8};
  double bucket_mb = 2, goal = 0.05;
  bool json = false;
};

struct Row {
  spec::Precision precision = spec::Precision::kBf16;
  int ranks = 1, zero = 0;
  std::int64_t elements = 0, weights = 0, gradients = 0, optimizer = 0, buckets = 0, all = 0;
  std::int64_t kept() const { return weights + gradients + optimizer; }

  double formula() const {
    const bool low = precision == spec::Precision::kBf16;
    const double p = static_cast<double>(elements), n = ranks;
    return (low ? 2 : 4) * p / (zero >= 3 ? n : 1) + 4 * p / (zero >= 2 ? n : 1) +
           (low ? 12 : 8) * p / (zero >= 1 ? n : 1);
  }
  double off() const { return static_cast<double>(kept()) / formula() - 1; }
};

/// A step of training, as the trainer makes it, with every part in reach.
Row measure(const Options& options, spec::Precision precision, int ranks, int zero) {
  spec::Recipe recipe = bench::gpt_recipe(options.size, precision, ranks);
  recipe.layout.zero = zero;
  recipe.layout.bucket_mb = options.bucket_mb;
  const spec::ModelShape shape = train::model_shape(recipe);
  std::vector<Row> rows(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    bench::TensorBytes counted;
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    const auto parallel_groups = train::form(recipe, shape, rank.world(), options.size.seq_len);
    models::BuildOptions build = train::build_options(recipe);
    build.parallel = &parallel_groups->parallel;
    const auto model = models::build(shape, build);
    std::vector<parallel::ShardUnit> units;
    for (const models::NamedLayer& entry : model->layers) units.push_back({entry.params});
    parallel::DataParallel data_parallel(std::move(units), model->params, *parallel_groups->groups,
                                         train::data_parallel_options(recipe, *parallel_groups));
    for (std::size_t i = 0; i < model->layers.size(); ++i) {
      model->layers[i].layer = data_parallel.wrap(std::move(model->layers[i].layer), i);
    }
    nn::initialise(data_parallel.owned(), precision, 1);
    data_parallel.updated();
    const auto optimizer = optim::make_optimizer(recipe.optim, data_parallel.owned());
    for (int step = 0; step < 2; ++step) {
      data::Batch batch = samples->read(std::vector<std::int64_t>{rank.rank()});
      data_parallel.begin_micro(/*last=*/true);
      nn::Context context;
      context.training = true;
      context.gradient_scale = 1 / (train::count_targets(batch) * ranks);
      context.on_gradient = [&](nn::Param& param) { data_parallel.added(param); };
      nn::Tape tape;
      nn::zero_grad(data_parallel.owned());
      model->forward(train::feed(batch, context, model->shape), context, &tape);
      model->backward(context, tape);
      data_parallel.finish();
      optim::update(*optimizer, {.learning_rate = 1e-4, .across = data_parallel.across()});
      data_parallel.updated();
    }
    nn::State state;
    optimizer->add_state(state);
    const parallel::DataParallel::Bytes bytes = data_parallel.bytes();
    rows[static_cast<std::size_t>(rank.rank())] = {.precision = precision,
                                                   .ranks = ranks,
                                                   .zero = zero,
                                                   .elements = model->params.elements(),
                                                   .weights = bytes.parameters,
                                                   .gradients = bytes.gradients,
                                                   .optimizer = bytes.masters + state.bytes(),
                                                   .buckets = bytes.buckets,
                                                   .all = counted.now()};
    rank.world().barrier().wait();
  });
  return *std::ranges::max_element(rows, {}, &Row::kept);
}

std::string mb(std::int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e6); }

}  // namespace

int main(int count, char** words) try {
  Options options;
  bool quick = false;
  bench::Arguments app("Memory a rank with ZeRO, beside the formulas");
  app.add_option("--num-layers", options.size.num_layers).show_default();
  app.add_option("--hidden-size", options.size.hidden_size).show_default();
  app.add_option("--ranks", options.ranks).delimiter(',').show_default();
  app.add_option("--bucket-mb", options.bucket_mb, "layout.bucket_mb").show_default();
  app.add_flag("--quick", quick, "a small model on two ranks");
  app.add_flag("--json", options.json, "one JSON document");
  if (const std::optional<int> status = app.parse(count, words)) return *status;
  if (quick) {
    options.size = {.num_layers = 2, .hidden_size = 128, .seq_len = 64};
    options.ranks = {2};
  }
  nlohmann::ordered_json document = nlohmann::ordered_json::array();
  bool met = true;
  for (const spec::Precision precision : {spec::Precision::kBf16, spec::Precision::kFp32}) {
    TextTable table({{"ranks"},
                     {"ZeRO"},
                     {"weights"},
                     {"gradients"},
                     {"optimizer"},
                     {"sum"},
                     {"formula"},
                     {"off"},
                     {"buckets"},
                     {"all tensors"}});
    std::int64_t elements = 0;
    for (const int ranks : options.ranks) {
      for (int zero = 0; zero <= 3; ++zero) {
        const Row row = measure(options, precision, ranks, zero);
        elements = row.elements;
        met = met && std::abs(row.off()) <= options.goal;
        table.add({fmt::format("{}", ranks), fmt::format("{}", zero), mb(row.weights), mb(row.gradients),
                   mb(row.optimizer), mb(row.kept()), fmt::format("{:.2f}", row.formula() / 1e6),
                   fmt::format("{:+.2f} %", 100 * row.off()), mb(row.buckets), mb(row.all)});
        document.push_back({{"precision", bench::name_of(precision)},
                            {"ranks", ranks},
                            {"zero", zero},
                            {"parameters", row.elements},
                            {"weights_bytes", row.weights},
                            {"gradients_bytes", row.gradients},
                            {"optimizer_bytes", row.optimizer},
                            {"formula_bytes", row.formula()},
                            {"off", row.off()},
                            {"buckets_bytes", row.buckets},
                            {"all_tensors_bytes", row.all}});
      }
    }
    if (!options.json) {
      fmt::print("GPT {}, {} parameters, {}: MB of the rank that keeps most\n{}\n", options.size.text(), elements,
                 bench::name_of(precision), table.text("  "));
    }
  }
  if (options.json) {
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("within {:.0f} % of the formulas: {}\n", 100 * options.goal, met ? "yes" : "no");
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
