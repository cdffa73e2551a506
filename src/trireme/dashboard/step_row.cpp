#include "trireme/dashboard/step_row.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/observe/expert_loads.h"
#include "trireme/observe/records.h"

namespace trireme::dashboard {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Walks a line whose form is known.
class RowScanner {
 public:
  explicit RowScanner(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  bool text(std::string_view expected) {
    if (static_cast<std::size_t>(end_ - at_) < expected.size() || std::string_view(at_, expected.size()) != expected)
      return false;
    at_ += expected.size();
    return true;
  }
  /// A number, "nan", "inf", "-inf" or null.
  bool number(double& value) {
    const auto [stop, error] = std::from_chars(at_, end_, value);
    if (error == std::errc()) {
      at_ = stop;
      return true;
    }
    return word("\"nan\"", kUnknown, value) || word("null", kUnknown, value) || word("\"inf\"", HUGE_VAL, value) ||
           word("\"-inf\"", -HUGE_VAL, value);
  }
  bool integer(std::int64_t& value) {
    const auto [stop, error] = std::from_chars(at_, end_, value);
    if (error != std::errc()) return false;
    at_ = stop;
    return true;
  }
  std::string_view rest() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }

 private:
  bool word(std::string_view spelled, double meant, double& value) {
    if (!text(spelled)) return false;
    value = meant;
    return true;
  }
  const char *at_, *end_;
};

std::optional<StepRow> parsed_row(std::string_view line) {
  const observe::Json json = observe::Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  try {
    const observe::StepRecord record = observe::step_from(json);
    StepRow row{.step = record.step,
                .loss = record.loss,
                .grad_norm = record.grad_norm,
                .lr = record.lr,
                .tokens = static_cast<double>(record.tokens),
                .tokens_per_s = record.tokens_per_s,
                .mfu = record.mfu.value_or(kUnknown),
                .memory = static_cast<double>(record.memory),
                .seconds = record.seconds,
                .compute = record.breakdown.compute,
                .data = record.breakdown.data,
                .comm = record.breakdown.comm,
                .overhead = record.breakdown.overhead,
                .losses = {}};
    for (const observe::NamedLoss& term : record.losses) row.losses.emplace_back(term.name, term.mean);
    for (const observe::LayerLoad& layer : record.experts)
      row.imbalance = std::fmax(row.imbalance, observe::max_over_mean(layer.tokens));
    row.noise_scale = record.noise_scale.value_or(kUnknown);
    for (const observe::LayerNoise& layer : record.noise_scales)
      row.noise_scales.emplace_back(layer.layer, layer.scale);
    return row;
  } catch (const IoError&) {
    return std::nullopt;
  }
}

}  // namespace

std::array<double, 14> numbers_of(const StepRow& row) {
  return {static_cast<double>(row.step),
          row.loss,
          row.grad_norm,
          row.lr,
          row.tokens,
          row.tokens_per_s,
          row.mfu,
          row.memory,
          row.seconds,
          row.compute,
          row.data,
          row.comm,
          row.overhead,
          row.noise_scale};
}

std::optional<std::pair<std::int64_t, double>> scan_loss(std::string_view line) {
  RowScanner scanner(line);
  std::int64_t step = 0;
  double loss = 0;
  if (scanner.text("{\"step\":") && scanner.integer(step) && scanner.text(",\"loss\":") && scanner.number(loss) &&
      step >= 0)
    return std::pair(step, loss);
  const auto row = parsed_row(line);
  return row ? std::optional(std::pair(row->step, row->loss)) : std::nullopt;
}

std::optional<StepRow> scan_row(std::string_view line) {
  RowScanner scanner(line);
  StepRow row;
  const auto field = [&](std::string_view name, double& value) { return scanner.text(name) && scanner.number(value); };
  const bool known = scanner.text("{\"step\":") && scanner.integer(row.step) && field(",\"loss\":", row.loss) &&
                     field(",\"grad_norm\":", row.grad_norm) && field(",\"lr\":", row.lr) &&
                     field(",\"tokens\":", row.tokens) && field(",\"tokens_per_s\":", row.tokens_per_s) &&
                     field(",\"mfu\":", row.mfu) && field(",\"memory\":", row.memory) &&
                     field(",\"seconds\":", row.seconds) && field(",\"breakdown\":{\"compute\":", row.compute) &&
                     field(",\"data\":", row.data) && field(",\"comm\":", row.comm) &&
                     field(",\"overhead\":", row.overhead) && row.step >= 0;
  // Terms of a loss, loads of experts and noise scales are rare, and have names: those lines are read as JSON.
  const auto has = [&](std::string_view key) { return scanner.rest().find(key) != std::string_view::npos; };
  if (known && !has("\"losses\":") && !has("\"experts\":") && !has("\"noise_scale\":")) return row;
  return parsed_row(line);
}

}  // namespace trireme::dashboard
