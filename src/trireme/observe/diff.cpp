#include "trireme/observe/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::observe {
namespace {

void count(ComparedSteps& steps, std::int64_t step) {
  if (steps.count++ == 0) steps.first = step;
  steps.last = step;
}

/// Of hashes.jsonl; of a step that only metrics.jsonl has a hash of, the whole state's alone.
std::map<std::int64_t, HashRecord> hashes_by_step(const RunFiles& run) {
  std::map<std::int64_t, HashRecord> out;
  for (const StepRecord& step : run.steps) {
    const auto total = step.hash ? parse_hex(*step.hash) : std::nullopt;
    if (total) out[step.step] = {.step = step.step, .total = *total, .tensors = {}};
  }
  for (const HashRecord& record : run.hashes) out[record.step] = record;
  return out;
}

std::optional<double> loss_at(const RunFiles& run, std::int64_t step) {
  const auto at = std::ranges::lower_bound(run.steps, step, {}, &StepRecord::step);
  if (at == run.steps.end() || at->step != step) return std::nullopt;
  return at->loss;
}

HashDifference describe(const HashRecord& left, const HashRecord& right) {
  HashDifference out;
  out.step = left.step;
  if (left.tensors.empty() || right.tensors.empty()) return out;
  const auto in = [](const HashRecord& record, const std::string& name) -> std::optional<std::uint64_t> {
    const auto at = record.tensors.find(name);
    return at == record.tensors.end() ? std::nullopt : std::optional(at->second);
  };
  std::set<std::string> names;
  for (const HashRecord* record : {&left, &right}) {
    for (const auto& [name, bits] : record->tensors) names.insert(name);
  }
  out.all_tensors = names.size();
  for (const std::string& name : names) {
    const auto a = in(left, name), b = in(right, name);
    if (a != b) out.tensors.push_back({name, a, b});
  }
  return out;
}

void compare_hashes(const RunFiles& left, const RunFiles& right, RunDifference& out) {
  const auto left_hashes = hashes_by_step(left), right_hashes = hashes_by_step(right);
  std::optional<std::int64_t> equal_at;
  for (const auto& [step, a] : left_hashes) {
    const auto b = right_hashes.find(step);
    if (b == right_hashes.end()) continue;
    count(out.hashed, step);
    if (out.hashes) continue;  // only counted
    const bool same_tensors = a.tensors.empty() || b->second.tensors.empty() || a.tensors == b->second.tensors;
    if (a.total == b->second.total && same_tensors) {
      equal_at = step;
      continue;
    }
    out.hashes = describe(a, b->second);
    out.hashes->equal_at = equal_at;
    out.hashes->left_loss = loss_at(left, step);
    out.hashes->right_loss = loss_at(right, step);
  }
}

/// To the bit, but all NaN are one: their texts in the files are.
bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

std::vector<MetricDifference::Field> differing_fields(const StepRecord& a, const StepRecord& b) {
  std::vector<MetricDifference::Field> out;
  const auto compare = [&](const std::string& name, double left, double right) {
    if (!same(left, right)) out.push_back({name, left, right});
  };
  compare("loss", a.loss, b.loss);
  compare("grad_norm", a.grad_norm, b.grad_norm);
  compare("lr", a.lr, b.lr);
  compare("tokens", static_cast<double>(a.tokens), static_cast<double>(b.tokens));
  if (a.losses.empty() || b.losses.empty()) return out;  // of one term the total says all
  const auto mean_in = [](const StepRecord& step, const std::string& name) {
    const auto at = std::ranges::find(step.losses, name, &NamedLoss::name);
    return at == step.losses.end() ? std::nan("") : at->mean;
  };
  std::set<std::string> names;
  for (const StepRecord* step : {&a, &b}) {
    for (const NamedLoss& term : step->losses) names.insert(term.name);
  }
  for (const std::string& name : names) compare("losses/" + name, mean_in(a, name), mean_in(b, name));
  return out;
}

void compare_metrics(const RunFiles& left, const RunFiles& right, RunDifference& out) {
  auto b = right.steps.begin();
  for (const StepRecord& a : left.steps) {
    while (b != right.steps.end() && b->step < a.step) ++b;
    if (b == right.steps.end()) break;
    if (b->step != a.step) continue;
    count(out.measured, a.step);
    if (out.metrics) continue;
    auto fields = differing_fields(a, *b);
    if (!fields.empty()) out.metrics = MetricDifference{a.step, std::move(fields)};
  }
}

std::string steps_text(const ComparedSteps& steps) {
  if (steps.count == 0) return "no step";
  if (steps.count == 1) return fmt::format("step {}", steps.first);
  return fmt::format("{} steps ({} to {})", steps.count, steps.first, steps.last);
}

std::string bits_text(const std::optional<std::uint64_t>& bits) { return bits ? hex(*bits) : "not there"; }

std::string hashes_text(const HashDifference& hashes, const std::string& left, const std::string& right) {
  constexpr std::size_t kShown = 10;
  std::string out = fmt::format("  state: differs after step {}{}\n", hashes.step,
                                hashes.equal_at ? fmt::format("; equal after step {}", *hashes.equal_at)
                                                : "; it is the first hashed step of both");
  if (hashes.left_loss && hashes.right_loss) {
    out += fmt::format("  loss at step {}: {} and {}\n", hashes.step, *hashes.left_loss, *hashes.right_loss);
  }
  if (hashes.tensors.empty()) return out + "  which tensors differ is not known: their hashes were not written\n";
  out += fmt::format("  {} of {} differ{}:\n", hashes.tensors.size(), counted(hashes.all_tensors, "tensor"),
                     hashes.tensors.size() == 1 ? "s" : "");
  TextTable table({{"tensor"}, {left}, {right}});
  for (std::size_t i = 0; i < std::min(kShown, hashes.tensors.size()); ++i) {
    const TensorDifference& tensor = hashes.tensors[i];
    table.add({tensor.name, bits_text(tensor.left), bits_text(tensor.right)});
  }
  out += table.text("    ");
  if (hashes.tensors.size() > kShown) {
    out += fmt::format("    and {} more, which --json lists\n", hashes.tensors.size() - kShown);
  }
  return out;
}

Json steps_json(const ComparedSteps& steps) {
  Json out{{"count", steps.count}};
  if (steps.count > 0) out.update({{"first", steps.first}, {"last", steps.last}});
  return out;
}

template <typename Value, typename Write>
Json or_null(const std::optional<Value>& value, Write&& write) {
  return value ? Json(write(*value)) : Json();
}

Json hashes_json(const HashDifference& hashes) {
  Json tensors = Json::array();
  for (const TensorDifference& tensor : hashes.tensors) {
    tensors.push_back(
        {{"name", tensor.name}, {"left", or_null(tensor.left, hex)}, {"right", or_null(tensor.right, hex)}});
  }
  const auto plain = [](std::int64_t step) { return step; };
  return {{"step", hashes.step},
          {"equal_at", or_null(hashes.equal_at, plain)},
          {"left_loss", or_null(hashes.left_loss, number)},
          {"right_loss", or_null(hashes.right_loss, number)},
          {"tensors", std::move(tensors)}};
}

}  // namespace

RunDifference difference(const RunFiles& left, const RunFiles& right) {
  RunDifference out;
  compare_hashes(left, right, out);
  compare_metrics(left, right, out);
  if (out.hashed.count > 0 || out.measured.count > 0) return out;
  const auto told = [](const RunFiles& run) {
    if (run.steps.empty()) return fmt::format("{} has no steps", run.dir.string());
    return fmt::format("{} has steps {} to {}", run.dir.string(), run.steps.front().step, run.steps.back().step);
  };
  throw ConfigError(fmt::format("there is nothing to compare: {}, {}", told(left), told(right)),
                    "name two runs that have steps in common");
}

std::string to_text(const RunDifference& difference, const std::string& left, const std::string& right) {
  const std::string what = difference.hashed.count == 0
                               ? fmt::format(
                                     "loss, gradient norm, learning rate and tokens of {} (they have no hashed step in "
                                     "common)",
                                     steps_text(difference.measured))
                               : fmt::format("the state's hashes of {}, the metrics of {}",
                                             steps_text(difference.hashed), steps_text(difference.measured));
  if (difference.equal()) return fmt::format("{} and {} are equal to the bit\n  compared: {}\n", left, right, what);
  std::string out = fmt::format("{} and {} differ\n  compared: {}\n", left, right, what);
  if (difference.metrics) {
    const MetricDifference& metrics = *difference.metrics;
    out += fmt::format("  metrics: differ from step {} on\n", metrics.step);
    for (const auto& field : metrics.fields)
      out += fmt::format("    {}: {} and {}\n", field.name, field.left, field.right);
    if (!difference.hashes && difference.hashed.count > 0) {
      out += "  state: all hashes agree: the reported metrics differ, the model does not\n";
    }
  }
  if (difference.hashes) out += hashes_text(*difference.hashes, left, right);
  return out;
}

Json to_json(const RunDifference& difference, const std::string& left, const std::string& right) {
  Json metrics;
  if (difference.metrics) {
    Json fields = Json::object();
    for (const auto& field : difference.metrics->fields) fields[field.name] = {number(field.left), number(field.right)};
    metrics = {{"step", difference.metrics->step}, {"fields", std::move(fields)}};
  }
  return {{"left", left},
          {"right", right},
          {"equal", difference.equal()},
          {"hashed_steps", steps_json(difference.hashed)},
          {"measured_steps", steps_json(difference.measured)},
          {"hashes", difference.hashes ? hashes_json(*difference.hashes) : Json()},
          {"metrics", std::move(metrics)}};
}

}  // namespace trireme::observe
