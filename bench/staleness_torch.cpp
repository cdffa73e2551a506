// bench/staleness_torch.cpp -- what delayed weights do to training: the loss, and how far gradients are from the true
// ones.
//
//   build/release/bench/staleness_torch --stages 8 --rate 0.05 [--optimizer adam] [--svg curves.svg]
//
// Every asynchronous kind trains the same small language model on the same tokens, with its serial mathematics (what
// the executor computes, to rounding: tests/train/multi_step_test.cpp). At each step the gradient that it takes is
// compared with the gradient of the same tokens at the weights that it is applied to: the peer is the synchronous run.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "bench/arguments.h"
#include "trireme/base/error.h"
#include "trireme/data/open_samples.h"
#include "trireme/optim/update.h"
#include "trireme/pipeline/delayed.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/train/engine/feed.h"

namespace {

using namespace trireme;

struct Options {
  int stages = 8, steps = 300, rows = 16, warmup = 20;
  double rate = 0.05;
  std::string optimizer = "sgd", svg;
};

struct Curve {
  std::string kind;
  std::vector<double> losses;
  double distance = 0, cosine = 0;  // of gradients, means over the steps
  bool diverged = false;
};

spec::Recipe recipe_of(const Options& options) {
  spec::Recipe recipe;
  recipe.run.seed = 1;
  recipe.model.family = spec::Family::kLlama;
  recipe.model.vocab_size = 32;
  recipe.model.max_seq_len = 32;
  recipe.model.hidden_size = 32;
  recipe.model.num_layers = options.stages;
  recipe.model.num_heads = 2;
  recipe.model.num_kv_heads = 2;
  recipe.model.head_dim = 16;
  recipe.model.ffn_size = 64;
  recipe.data.seq_len = 32;
  recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
  recipe.data.synthetic.vocab_size = 32;
  const bool sgd = options.optimizer == "sgd";
  recipe.optim.kind = sgd ? spec::OptimizerKind::kSgd : spec::OptimizerKind::kAdam;
  if (sgd) recipe.optim.momentum = 0.9;
  recipe.optim.weight_decay = 0;
  recipe.optim.learning_rate = options.rate;
  return recipe;
}

/// The whole gradient as one vector.
at::Tensor flat_gradient(const nn::Params& params) {
  std::vector<at::Tensor> parts;
  for (const nn::Param& param : params) parts.push_back(param.gradient.reshape({-1}));
  return at::cat(parts).to(at::kDouble);
}

Curve train_kind(const std::string& kind, const Options& options) {
  const spec::Recipe recipe = recipe_of(options);
  const spec::ModelShape shape = *spec::shape_of(recipe.model);
  const auto samples = data::open_samples(recipe, data::Split::kTrain);
  const auto model = models::build(shape);
  nn::initialise(model->params, nn::Precision::kFp32, 1);
  const auto optimizer = optim::make_optimizer(recipe.optim, model->params);
  // Kinds that add up micros have a step of as many as there are stages; weights depend on the step alone.
  const bool each =
      schedule::build(kind, {.ranks = options.stages, .micros = options.stages, .steps = 1}).update_every == 1;
  const auto table = schedule::complete(
      schedule::build(kind, {.ranks = options.stages, .micros = each ? 1 : options.stages, .steps = options.steps}));
  double rate = options.rate;
  const auto predictor = pipeline::make_weight_predictor(table.weights, *optimizer, [&] { return rate; });
  const auto split = pipeline::split_by_count(pipeline::chain_names(shape), options.stages);
  pipeline::DelayedGradients delayed(*model, split, pipeline::law_of(table), table.micros, predictor.get());
  Curve curve{.kind = table.weights == schedule::WeightChoice::kFlush ? "synchronous" : kind};
  for (int step = 0; step < options.steps; ++step) {
    rate = options.rate * std::min(1.0, (step + 1.0) / options.warmup);
    step == 0 ? delayed.begin() : delayed.updated();
    std::vector<std::int64_t> numbers;
    for (int row = 0; row < options.rows; ++row) numbers.push_back(std::int64_t{step} * options.rows + row);
    data::Batch batch = samples->read(numbers);
    const double targets = train::count_targets(batch);
    const auto make = [&] {
      pipeline::Micro micro;
      micro.context.training = true;
      micro.context.gradient_scale = 1 / targets;
      micro.inputs = train::feed(batch, micro.context, model->shape);
      return micro;
    };
    pipeline::Micro now = make();
    nn::Tape tape;
    nn::zero_grad(model->params);
    model->forward(now.inputs, now.context, &tape);
    model->backward(now.context, tape);
    const at::Tensor truth = flat_gradient(model->params);
    double loss = 0;  // at the present weights: what one has
    for (const nn::LossTerm& term : now.context.losses) loss += term.sum / targets;
    if (!std::isfinite(loss)) {  // the curve ends before
      curve.diverged = true;
      break;
    }
    curve.losses.push_back(loss);
    nn::zero_grad(model->params);
    pipeline::Micro micro = make();
    delayed.add(micro, step * (table.micros / options.steps));
    const at::Tensor taken = flat_gradient(model->params);
    const double length = truth.norm().item<double>();
    curve.distance += (taken - truth).norm().item<double>() / length / options.steps;
    curve.cosine += at::dot(taken, truth).item<double>() / (length * taken.norm().item<double>()) / options.steps;
    optimizer->step({.learning_rate = rate});
  }
  return curve;
}

double last_loss(const Curve& curve) {
  double sum = 0;
  const std::size_t count = std::min<std::size_t>(20, curve.losses.size());
  for (std::size_t i = curve.losses.size() - count; i < curve.losses.size(); ++i) sum += curve.losses[i];
  return sum / static_cast<double>(count);
}

/// Loss curves over the steps, each the mean of the ten steps around.
void write_svg(const std::string& path, const std::vector<Curve>& curves, const Options& options) {
  constexpr double kWidth = 640, kHeight = 320, kLeft = 48, kRight = 150, kTop = 28, kBottom = 40;
  const char* colors[] = {"#222222", "#4e86d6", "#5cb270", "#eeaa48", "#9e80c8", "#cd3c50"};
  double low = 1e9, high = 0;
  for (const Curve& curve : curves) {
    for (const double loss : curve.losses) low = std::min(low, loss);
    high = std::max(high, curve.losses.front());
  }
  high *= 1.05;
  const auto x = [&](std::size_t step) {
    return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(step) / options.steps;
  };
  const auto y = [&](double loss) {
    return kTop + (kHeight - kTop - kBottom) * (high - std::min(loss, high)) / (high - low);
  };
  std::ofstream out(path);
  out << fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">
<rect width="100%" height="100%" fill="white"/>
<text x="{2}" y="16" font-size="13" font-weight="bold">loss over {3} steps, {4} stages, {5} with rate {6:g}</text>
)",
      kWidth, kHeight, kLeft, options.steps, options.stages, options.optimizer, options.rate);
  for (int i = 0; i <= 4; ++i) {
    const double loss = low + (high - low) * i / 4;
    const std::size_t step = static_cast<std::size_t>(options.steps * i / 4);
    out << fmt::format(
        "<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#ddd\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\" fill=\"#555\">{5:.2f}</text>\n",
        kLeft, y(loss), kWidth - kRight, kLeft - 6, y(loss) + 4, loss);
    out << fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{}</text>\n", x(step),
                       kHeight - kBottom + 16, step);
  }
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::string points;
    const auto& losses = curves[i].losses;
    for (std::size_t step = 0; step < losses.size(); ++step) {
      const std::size_t from = step < 5 ? 0 : step - 5, to = std::min(losses.size(), step + 5);
      double sum = 0;
      for (std::size_t j = from; j < to; ++j) sum += losses[j];
      points += fmt::format("{:.1f},{:.1f} ", x(step), y(sum / static_cast<double>(to - from)));
    }
    out << fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>\n", points,
                       colors[i % 6]);
    const double top = kTop + 12 + 18 * static_cast<double>(i);
    out << fmt::format(
        "<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\" stroke=\"{3}\" stroke-width=\"3\"/><text x=\"{4}\" "
        "y=\"{5}\">{6}</text>\n",
        kWidth - kRight + 12, top, kWidth - kRight + 32, colors[i % 6], kWidth - kRight + 38, top + 4, curves[i].kind);
  }
  out << "</svg>\n";
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bench::Arguments app(
      "Trains a small model with the delayed weights of each asynchronous schedule, beside the synchronous run.");
  app.add_option("--stages", options.stages, "of the pipeline, and blocks of the model").show_default();
  app.add_option("--steps", options.steps, "of training").show_default();
  app.add_option("--rows", options.rows, "of 32 tokens, a step").show_default();
  app.add_option("--warmup", options.warmup, "steps until the whole rate").show_default();
  app.add_option("--rate", options.rate, "learning rate").show_default();
  app.add_option("--optimizer", options.optimizer, "sgd (momentum 0.9) or adam").show_default();
  app.add_option("--svg", options.svg, "where to draw the curves");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  at::set_num_threads(1);
  std::vector<std::string> kinds{"1f1b", "pipedream-2bw", "pipedream", "pipedream-vsync"};
  kinds.push_back(options.optimizer == "sgd" ? "spectrain" : "xpipe");
  kinds.push_back("stale");
  const auto samples = data::open_samples(recipe_of(options), data::Split::kTrain);
  fmt::print("{} stages, {}, rate {:g}, {} steps of {} tokens; the best possible loss is {:.3f}\n", options.stages,
             options.optimizer, options.rate, options.steps, options.rows * 32, samples->best_loss().value_or(0));
  fmt::print("{:>16} {:>10} {:>22} {:>20} {:>7}\n", "kind", "last loss", "over the synchronous", "gradient is off by",
             "cosine");
  std::vector<Curve> curves;
  for (const std::string& kind : kinds) {
    curves.push_back(train_kind(kind, options));
    const Curve& curve = curves.back();
    if (curve.diverged) {
      fmt::print("{:>16} diverged at step {}\n", curve.kind, curve.losses.size() + 1);
      continue;
    }
    fmt::print("{:>16} {:>10.3f} {:>21.1f}% {:>19.1f}% {:>7.3f}\n", curve.kind, last_loss(curve),
               100 * (last_loss(curve) / last_loss(curves.front()) - 1), 100 * curve.distance, curve.cosine);
    std::fflush(stdout);
  }
  if (!options.svg.empty()) write_svg(options.svg, curves, options);
  return 0;
}
