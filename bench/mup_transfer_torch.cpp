// Does the best learning rate transfer over widths? build/release/bench/mup_transfer_torch [STEPS [PLOT.svg]]
//
// A GPT-2 of two layers on a Markov chain of 64 tokens, widths 32 to 256, learning rates a factor of two apart: the
// mean loss of the last steps in the standard parametrisation and with muP (base width 32). With muP the lowest loss
// stays at one rate.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "trireme/base/random.h"
#include "trireme/models/model.h"
#include "trireme/optim/update.h"

namespace trireme::bench {
namespace {

constexpr std::int64_t kWidths[] = {32, 64, 128, 256};
constexpr int kRates = 8;
constexpr std::int64_t kVocabulary = 64, kRows = 16, kTokens = 32;
double rate_of(int i) { return std::pow(2.0, -11 + i); }

/// [rows, tokens + 1]: each token from the one before, by transitions that a seed gives.
at::Tensor batch_of(int step) {
  static const std::vector<double> cumulative = [] {
    std::vector<double> sums;
    const Random random(1, "transitions");
    for (std::uint64_t from = 0; from < kVocabulary; ++from) {
      double sum = 0;
      for (std::uint64_t to = 0; to < kVocabulary; ++to)
        sums.push_back(sum += std::exp(3 * random.normal(from * kVocabulary + to)));
      for (std::uint64_t to = 0; to < kVocabulary; ++to) sums[from * kVocabulary + to] /= sum;
    }
    return sums;
  }();
  at::Tensor ids = at::empty({kRows, kTokens + 1}, at::TensorOptions(at::kLong));
  auto* numbers = ids.data_ptr<std::int64_t>();
  const Random random(2, fmt::format("step {}", step));
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    const double draw = random.uniform(static_cast<std::uint64_t>(i));
    if (i % (kTokens + 1) == 0) {
      numbers[i] = static_cast<std::int64_t>(draw * kVocabulary);
      continue;
    }
    const auto row = cumulative.begin() + numbers[i - 1] * kVocabulary;
    numbers[i] = std::min<std::int64_t>(kVocabulary - 1, std::lower_bound(row, row + kVocabulary, draw) - row);
  }
  return ids;
}

double final_loss(std::int64_t width, bool mup, double rate, int steps) {
  spec::ModelShape shape = spec::family_shape(spec::Family::kGpt2);
  shape.vocab_size = kVocabulary;
  shape.max_seq_len = kTokens;
  shape.hidden_size = width;
  shape.num_layers = 2;
  shape.head_dim = 16;
  shape.num_heads = shape.num_kv_heads = width / 16;
  shape.ffn_size = 4 * width;
  shape.dropout = shape.attention_dropout = 0;
  if (mup) shape.mup_base_hidden_size = kWidths[0];
  const auto model = models::build(shape);
  nn::initialise(model->params, nn::Precision::kFp32, 5);
  const auto optimizer = optim::make_optimizer({.kind = spec::OptimizerKind::kAdamw}, model->params);
  double sum = 0;
  int count = 0;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor ids = batch_of(step);
    nn::Context context;
    context.training = true;
    context.sequence = nn::plain_sequence(kRows, kTokens);
    context.targets = ids.narrow(1, 1, kTokens).contiguous();
    context.gradient_scale = 1.0 / static_cast<double>(kRows * kTokens);
    nn::Tape tape;
    model->forward({ids.narrow(1, 0, kTokens).contiguous()}, context, &tape);
    model->backward(context, tape);
    const double loss = context.losses.at(0).sum / context.losses.at(0).count;
    if (!std::isfinite(loss)) return INFINITY;
    optim::update(*optimizer, {.learning_rate = rate});
    if (step >= steps - steps / 5) sum += loss, ++count;
  }
  return sum / std::max(count, 1);
}

/// Loss over log2 of the rate, one curve a width, both parametrisations side by side.
std::string plot(const std::vector<std::vector<std::vector<double>>>& losses) {
  double low = INFINITY, high = 0;
  for (const auto& side : losses)
    for (const auto& curve : side)
      for (const double loss : curve)
        if (std::isfinite(loss)) low = std::min(low, loss), high = std::max(high, loss);
  constexpr double kPanel = 320, kTall = 240, kMargin = 45;
  const char* colors[] = {"#9ecae1", "#6baed6", "#2171b5", "#08306b"};
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n",
      2 * (kPanel + kMargin) + 20, kTall + 2 * kMargin);
  for (std::size_t side = 0; side < losses.size(); ++side) {
    const double left = kMargin + static_cast<double>(side) * (kPanel + kMargin);
    const auto x = [&](int i) { return left + kPanel * i / (kRates - 1); };
    const auto y = [&](double loss) { return kMargin + kTall * (high - loss) / (high - low); };
    out += fmt::format("<text x=\"{}\" y=\"20\" font-size=\"13\">{}</text>\n", left,
                       side == 0 ? "standard parametrisation" : "muP, base width 32");
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#999\"/>\n", left,
                       kMargin, kPanel, kTall);
    for (int i = 0; i < kRates; ++i)
      out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">2^{}</text>\n", x(i), kMargin + kTall + 15,
                         -11 + i);
    for (std::size_t w = 0; w < losses[side].size(); ++w) {
      std::string points;
      int best = 0;
      for (int i = 0; i < kRates; ++i) {
        const double loss = losses[side][w][static_cast<std::size_t>(i)];
        if (!std::isfinite(loss)) continue;
        points += fmt::format("{:.1f},{:.1f} ", x(i), y(loss));
        if (loss < losses[side][w][static_cast<std::size_t>(best)]) best = i;
      }
      out +=
          fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", points, colors[w]);
      out += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>width {}: best at 2^{}</title></circle>\n",
          x(best), y(losses[side][w][static_cast<std::size_t>(best)]), colors[w], kWidths[w], -11 + best);
      out += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", left + kPanel - 30, kMargin + 15 + 14 * w,
                         colors[w], kWidths[w]);
    }
  }
  out += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">learning rate; a curve a width, its lowest loss marked</text>\n",
      kMargin + kPanel, kTall + 2 * kMargin - 8);
  return out + "</svg>\n";
}

int run(int count, char** words) {
  int steps = 60;
  std::string drawing;
  Arguments app("The loss over learning rates and widths, in the standard parametrisation and with muP");
  app.add_option("STEPS", steps, "of each run").positive().show_default();
  app.add_option("PLOT", drawing, "draw them into this SVG file");
  if (const auto status = app.parse(count, words)) return *status;
  at::set_num_threads(1);
  std::vector<std::vector<std::vector<double>>> losses(2);
  for (const bool mup : {false, true}) {
    fmt::print("{}\n{:>8}", mup ? "muP, base width 32" : "standard parametrisation", "width");
    for (int i = 0; i < kRates; ++i) fmt::print("{:>9}", fmt::format("2^{}", -11 + i));
    fmt::print("{:>10}\n", "best");
    for (const std::int64_t width : kWidths) {
      std::vector<double>& curve = losses[mup ? 1 : 0].emplace_back();
      fmt::print("{:>8}", width);
      int best = 0;
      for (int i = 0; i < kRates; ++i) {
        curve.push_back(final_loss(width, mup, rate_of(i), steps));
        if (curve.back() < curve[static_cast<std::size_t>(best)]) best = i;
        fmt::print("{:>9.4f}", curve.back());
        std::fflush(stdout);
      }
      fmt::print("{:>10}\n", fmt::format("2^{}", -11 + best));
    }
  }
  if (!drawing.empty()) std::ofstream(drawing) << plot(losses);
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int count, char** words) { return trireme::bench::run(count, words); }
