#include "trireme/plan/layout_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"
#include "trireme/plan/run_setup.h"
#include "trireme/schedule/builders.h"
#include "trireme/spec/batch_split.h"

namespace trireme::plan {
namespace {

using spec::ContextKind;

constexpr const char *kMicroFeature = "micro-batch 2", *kRecomputeFeature = "recompute";

std::vector<std::string> find_features(const spec::ParallelConfig& config) {
  const spec::LayoutConfig& layout = config.layout;
  std::vector<std::string> features;
  if (config.micro_batch_size > 1) features.emplace_back(kMicroFeature);
  if (config.recompute != spec::RecomputeKind::kNone) features.emplace_back(kRecomputeFeature);
  if (layout.dp.value_or(1) > 1) features.emplace_back("dp");
  if (layout.ep > 1) features.push_back(fmt::format("ep {}", layout.ep));
  if (layout.zero > 0) features.push_back(fmt::format("zero {}", layout.zero));
  if (layout.zero_group) features.emplace_back("zero group");
  if (layout.tp > 1) features.emplace_back("tp");
  if (layout.sequence_parallel) features.emplace_back("sp");
  if (layout.tp_overlap) features.emplace_back("tp overlap");
  if (layout.sp_save_gathered) features.emplace_back("sp save gathered");
  if (layout.cp > 1) {
    features.emplace_back(name_in(spec::enum_names(std::type_identity<ContextKind>()), layout.cp_kind));
    if (layout.cp_ulysses > 1) features.emplace_back("cp ulysses");
  }
  if (layout.pp > 1) features.push_back(config.pipeline.schedule);
  return features;
}

std::vector<int> divisors(int number) {
  std::vector<int> out;
  for (int i = 1; i <= number; ++i) {
    if (number % i == 0) out.push_back(i);
  }
  return out;
}

/// One choice after the other, each with all that can follow.
class Enumeration {
 public:
  explicit Enumeration(const spec::LayoutTask& task) : task_(task), ranks_(task.ranks.value_or(1)) {}

  LayoutMatrix run() {
    for (const int tp : divisors(ranks_)) {
      for (const int cp : divisors(ranks_ / tp)) {
        for (const int pp : divisors(ranks_ / tp / cp)) {
          spec::LayoutConfig layout{.dp = ranks_ / tp / cp / pp, .tp = tp, .pp = pp, .cp = cp};
          for (const int ep : expert_ranks(*layout.dp * cp)) {
            layout.ep = ep;
            with_tensor(layout);
          }
        }
      }
    }
    return std::move(matrix_);
  }

 private:
  /// Ways to shard experts over so many ranks.
  std::vector<int> expert_ranks(int ranks) const {
    if (!task_.shape.experts.used()) return {1};
    return divisors(static_cast<int>(std::gcd(task_.shape.experts.num_experts, std::int64_t{ranks})));
  }
  void with_tensor(spec::LayoutConfig layout) {
    with_context(layout);
    if (layout.tp == 1) return;
    layout.sequence_parallel = true;
    with_context(layout);
    layout.tp_overlap = true;
    with_context(layout);
    layout.tp_overlap = false;
    layout.sp_save_gathered = true;
    with_context(layout);
  }

  void with_context(spec::LayoutConfig layout) {
    if (layout.cp == 1) return with_zero(layout);
    for (const ContextKind kind : {ContextKind::kRing, ContextKind::kUlysses, ContextKind::kGather}) {
      layout.cp_kind = kind;
      layout.cp_ulysses = 1;
      with_zero(layout);
      if (kind == ContextKind::kUlysses || layout.cp < 4) continue;
      layout.cp_ulysses = 2;
      with_zero(layout);
    }
  }

  void with_zero(spec::LayoutConfig layout) {
    with_schedule(layout);
    if (*layout.dp * layout.cp == 1) return;  // nobody to share with
    for (layout.zero = 1; layout.zero <= 3; ++layout.zero) {
      layout.zero_group.reset();
      with_schedule(layout);
      if (*layout.dp < 4) continue;
      layout.zero_group = 2;
      with_schedule(layout);
    }
  }

  void with_schedule(const spec::LayoutConfig& layout) {
    if (layout.pp == 1) return add(layout, {});
    for (const schedule::Kind& kind : schedule::kinds()) {
      spec::PipelineConfig pipeline{.schedule = std::string(kind.name), .virtual_stages = kind.default_chunks};
      const std::int64_t rows = task_.micro_batch_size.value_or(1);
      const std::int64_t micros = spec::most_micros(task_.batch_rows, *layout.dp, {}, rows);
      const std::string why = kind.refuses({.ranks = layout.pp,
                                            .micros = static_cast<int>(micros),
                                            .chunks_per_rank = kind.default_chunks,
                                            .micro_rows = static_cast<int>(rows)});
      if (!why.empty()) {
        matrix_.refused.push_back({LayoutCase{{.layout = layout, .pipeline = pipeline}, {}}.text(), why});
        continue;
      }
      add(layout, pipeline);
    }
  }

  /// What experts have to say of micro-batches and recomputation is said by layouts that take turns with them.
  void vary(LayoutCase& one) {
    if (!task_.shape.experts.used()) return;
    const std::size_t turn = matrix_.cases.size();
    if (turn % 3 == 1) one.recompute = spec::RecomputeKind::kFull;
    if (turn % 4 >= 2 && one.layout.pp == 1) one.micro_batch_size = 2;
  }

  void add(const spec::LayoutConfig& layout, const spec::PipelineConfig& pipeline) {
    LayoutCase one{{.layout = layout, .pipeline = pipeline}, {}};
    one.micro_batch_size = task_.micro_batch_size.value_or(1);
    vary(one);
    one.features = find_features(one);
    const auto problems = spec::find_layout_problems(layout, pipeline, task_);
    if (problems.empty()) {
      matrix_.cases.push_back(std::move(one));
    } else {
      matrix_.refused.push_back({one.text(), fmt::format("{}: {}", problems[0].key, problems[0].reason)});
    }
  }

  const spec::LayoutTask& task_;
  int ranks_;
  LayoutMatrix matrix_;
};

using Pair = std::pair<std::string, std::string>;

std::vector<Pair> pairs_of(const LayoutCase& one) {
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < one.features.size(); ++i) {
    for (std::size_t j = i; j < one.features.size(); ++j) pairs.emplace_back(one.features[i], one.features[j]);
  }
  return pairs;
}

int number_of(const std::string& key, const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) {
    throw ConfigError(fmt::format("layout: {} is \"{}\", but it is a whole number", key, text));
  }
  return number;
}

}  // namespace

std::string LayoutCase::text() const {
  std::string out;
  const auto add = [&](const std::string& word) { out += (out.empty() ? "" : " ") + word; };
  if (layout.dp.value_or(1) > 1) add(fmt::format("dp={}", *layout.dp));
  if (layout.tp > 1) add(fmt::format("tp={}", layout.tp));
  if (layout.sequence_parallel) add("sp");
  if (layout.tp_overlap) add("tp_overlap");
  if (layout.sp_save_gathered) add("sp_save_gathered");
  if (layout.cp > 1) {
    add(fmt::format("cp={}", layout.cp));
    add(std::string(name_in(spec::enum_names(std::type_identity<ContextKind>()), layout.cp_kind)));
    if (layout.cp_ulysses > 1) add(fmt::format("cp_ulysses={}", layout.cp_ulysses));
  }
  if (layout.ep > 1) add(fmt::format("ep={}", layout.ep));
  if (layout.pp > 1) add(fmt::format("pp={} {}", layout.pp, pipeline.schedule));
  if (layout.zero > 0) add(fmt::format("zero={}", layout.zero));
  if (layout.zero_group) add(fmt::format("zero_group={}", *layout.zero_group));
  if (micro_batch_size > 1) add(fmt::format("micro={}", micro_batch_size));
  if (recompute != spec::RecomputeKind::kNone) add("recompute");
  return out.empty() ? "one rank" : out;
}

LayoutMatrix all_layouts(const spec::LayoutTask& task) { return Enumeration(task).run(); }

std::vector<std::string> features_of(const std::vector<LayoutCase>& cases) {
  std::vector<std::string> order{"dp",     "ep 2",       "ep 4",   "ep 8",       "zero 1",      "zero 2",
                                 "zero 3", "zero group", "tp",     "sp",         "tp overlap",  "sp save gathered",
                                 "ring",   "ulysses",    "gather", "cp ulysses", kMicroFeature, kRecomputeFeature};
  for (const schedule::Kind& kind : schedule::kinds()) order.emplace_back(kind.name);
  std::set<std::string> there;
  for (const LayoutCase& one : cases) there.insert(one.features.begin(), one.features.end());
  std::erase_if(order, [&](const std::string& name) { return !there.contains(name); });
  return order;
}

std::vector<LayoutCase> cover_pairs(const std::vector<LayoutCase>& cases, std::size_t least, std::uint64_t seed,
                                    const std::function<bool(const LayoutCase&)>& counts) {
  std::set<Pair> open;
  for (const LayoutCase& one : cases) {
    for (Pair& pair : pairs_of(one)) open.insert(std::move(pair));
  }
  // A fixed shuffle: of layouts that cover equally much, any may come.
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const Random random(seed, "layouts");
  std::vector<double> draws(cases.size());
  random.fill_uniform(0, std::span<double>(draws));
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return draws[a] < draws[b]; });

  std::vector<LayoutCase> chosen;
  std::set<std::size_t> taken;
  while (!open.empty()) {
    std::size_t best = cases.size(), best_count = 0;
    for (const std::size_t i : order) {
      const auto pairs = pairs_of(cases[i]);
      const auto count =
          static_cast<std::size_t>(std::ranges::count_if(pairs, [&](const Pair& pair) { return open.contains(pair); }));
      if (count > best_count) best = i, best_count = count;
    }
    for (const Pair& pair : pairs_of(cases[best])) open.erase(pair);
    chosen.push_back(cases[best]);
    taken.insert(best);
  }
  const auto wanted = [&](const LayoutCase& one) { return !counts || counts(one); };
  auto there = static_cast<std::size_t>(std::ranges::count_if(chosen, wanted));
  for (const std::size_t i : order) {
    if (there >= least) break;
    if (taken.contains(i) || !wanted(cases[i])) continue;
    chosen.push_back(cases[i]);
    ++there;
  }
  return chosen;
}

LayoutCase parse_layout(const std::string& text) {
  LayoutCase out;
  spec::LayoutConfig& layout = out.layout;
  const std::map<std::string, int*> numbers{{"tp", &layout.tp},     {"pp", &layout.pp},
                                            {"cp", &layout.cp},     {"ep", &layout.ep},
                                            {"zero", &layout.zero}, {"cp_ulysses", &layout.cp_ulysses}};
  const std::map<std::string, bool*> switches{{"sp", &layout.sequence_parallel},
                                              {"tp_overlap", &layout.tp_overlap},
                                              {"sp_save_gathered", &layout.sp_save_gathered}};
  for (const std::string& word : split(text, ' ')) {
    if (word.empty()) continue;
    const std::size_t sign = word.find('=');
    const std::string key = word.substr(0, sign), value = sign == std::string::npos ? "" : word.substr(sign + 1);
    if (const auto found = switches.find(key); found != switches.end() && value.empty()) {
      *found->second = true;
    } else if (const auto number = numbers.find(key); number != numbers.end()) {
      *number->second = number_of(key, value);
    } else if (key == "dp") {
      layout.dp = number_of(key, value);
    } else if (key == "zero_group") {
      layout.zero_group = number_of(key, value);
    } else if (key == "virtual_stages") {
      out.pipeline.virtual_stages = number_of(key, value);
    } else if (key == "schedule") {
      out.pipeline.schedule = value;
    } else if (key == "cp_kind") {
      const auto names = spec::enum_names(std::type_identity<ContextKind>());
      const auto kind = std::ranges::find_if(names, [&](const auto& named) { return named.name == value; });
      if (kind == names.end()) throw ConfigError(fmt::format("layout: there is no cp_kind \"{}\"", value));
      layout.cp_kind = kind->value;
    } else {
      throw ConfigError(fmt::format("layout: \"{}\" is no key of a layout", word),
                        "for instance \"tp=2 sp pp=2 schedule=zb-v zero=1 cp=2 cp_kind=ring\"");
    }
  }
  out.features = find_features(out);
  return out;
}

}  // namespace trireme::plan
