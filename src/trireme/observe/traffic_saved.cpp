#include "trireme/observe/traffic_saved.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/html.h"
#include "trireme/base/units.h"
#include "trireme/observe/rank_log.h"

namespace trireme::observe {
namespace {

/// "layers.3" of "layers.3.mlp.in.weight"; "head" of "head.weight".
std::string compressed_layer(const std::string& name) {
  const std::size_t first = name.find('.'), second = first == std::string::npos ? first : name.find('.', first + 1);
  const bool numbered =
      second != std::string::npos && second > first + 1 &&
      std::all_of(name.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                  name.begin() + static_cast<std::ptrdiff_t>(second), [](char c) { return c >= '0' && c <= '9'; });
  return name.substr(0, numbered ? second : first);
}

}  // namespace

std::optional<double> CompressionFigures::gain_s() const {
  if (measured_gain_s) return measured_gain_s;
  const double spent = std::max(seconds, comm_seconds);
  if (sent_bytes <= 0 || spent <= 0) return std::nullopt;
  return spent / sent_bytes * saved_bytes;
}

std::optional<CompressionFigures> compression_figures(std::span<const RankRecord> steps) {
  std::optional<CompressionFigures> figures;
  double comm = 0;
  for (const RankRecord& step : steps) {
    const auto number = [&](const char* name) -> std::optional<double> {
      const auto found = step.metrics.find(name);
      return found == step.metrics.end() ? std::nullopt : std::optional(found->second);
    };
    comm += number("step/exposed_comm_seconds").value_or(0);
    if (!number("compress/sent_bytes")) continue;
    figures = CompressionFigures{.sent_bytes = *number("compress/sent_bytes"),
                                 .saved_bytes = number("compress/saved_bytes").value_or(0),
                                 .seconds = number("compress/seconds").value_or(0),
                                 .kernel_seconds = number("compress/kernel_seconds").value_or(0),
                                 .comm_seconds = comm,
                                 .rounds = number("compress/rounds").value_or(0),
                                 .relative_error = number("compress/relative_error").value_or(0),
                                 .predicted_gain_s = number("compress/predicted_gain_seconds"),
                                 .measured_gain_s = number("compress/measured_gain_seconds")};
    constexpr std::string_view kError = "compress/error/";
    for (const auto& [name, value] : step.metrics) {
      if (name.starts_with(kError)) figures->errors.emplace_back(name.substr(kError.size()), value);
    }
  }
  return figures;
}

std::optional<CompressionFigures> compression_of(const std::filesystem::path& run) {
  if (!std::filesystem::exists(run / "ranks")) return std::nullopt;
  const auto ranks = read_ranks(run);
  const auto first = ranks.find(0);
  return first == ranks.end() ? std::nullopt : compression_figures(first->second);
}

std::string compression_table(const CompressionFigures& figures) {
  const double dense = figures.sent_bytes + figures.saved_bytes;
  const auto seconds = [](const std::optional<double>& value) { return value ? short_seconds(*value) : "–"; };
  std::string out = fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>Rank 0 sent</th><th>saved</th><th>rounds</th><th>in compression and "
      "exchange</th><th>of that, computing</th><th>gained, {}</th><th>gained, predicted</th><th>relative "
      "error</th></tr></thead><tbody><tr><td>{}</td><td>{} ({:.1f} "
      "%)</td><td>{:.0f}</td><td>{}</td><td>{}</td><td>{}</td><td>{}"
      "</td><td>{:.3f}</td></tr></tbody></table></div>\n",
      figures.measured_gain_s ? "measured" : "at the rate of what was sent", short_bytes(figures.sent_bytes),
      short_bytes(figures.saved_bytes), dense > 0 ? 100 * figures.saved_bytes / dense : 0, figures.rounds,
      short_seconds(figures.seconds), short_seconds(figures.kernel_seconds), seconds(figures.gain_s()),
      seconds(figures.predicted_gain_s), figures.relative_error);
  struct LayerError {
    std::string name;
    double sum = 0;
    int count = 0;
  };
  std::vector<LayerError> layers;
  for (const auto& [name, error] : figures.errors) {
    const std::string layer = compressed_layer(name);
    auto found = std::ranges::find(layers, layer, &LayerError::name);
    if (found == layers.end()) found = layers.insert(layers.end(), {.name = layer});
    found->sum += error;
    ++found->count;
  }
  if (layers.empty()) return out;
  std::string head, row;
  for (const LayerError& layer : layers) {
    head += fmt::format("<th>{}</th>", escaped(layer.name));
    row += fmt::format("<td>{:.3f}</td>", layer.sum / layer.count);
  }
  return out + fmt::format(
                   "<p>|Q(c) - c| / |c| of the last round, by layer:</p><div class=\"scroll\"><table><thead><tr>{}"
                   "</tr></thead><tbody><tr>{}</tr></tbody></table></div>\n",
                   head, row);
}

}  // namespace trireme::observe
