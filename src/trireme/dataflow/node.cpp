#include "trireme/dataflow/node.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::dataflow {
namespace {

/// All of them, in the order of their places.
Payload joined(const std::map<int, Payload>& parts) {
  Payload all;
  for (const auto& [place, part] : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Likewise, added up.
Payload summed(const std::map<int, Payload>& parts) {
  Payload sum = parts.begin()->second;
  for (auto part = std::next(parts.begin()); part != parts.end(); ++part) {
    TRIREME_CHECK(part->second.size() == sum.size(), "a sum of {} and of {} elements", sum.size(), part->second.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part->second[i];
  }
  return sum;
}

Payload piece(const Payload& whole, std::size_t at, std::size_t size) {
  TRIREME_CHECK(at + size <= whole.size(), "a piece of {} elements from {} on of {}", size, at, whole.size());
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(at);
  return {begin, begin + static_cast<std::ptrdiff_t>(size)};
}

template <typename Value>
Value taken(std::map<State, Value>& map, const State& state, const char* what) {
  auto found = map.extract(state);
  TRIREME_CHECK(!found.empty(), "{} got a backward message of instance {}, position {}, without its forward", what,
                state.instance, state.position);
  return std::move(found.mapped());
}

template <typename Value>
void keep(std::map<State, Value>& map, const State& state, Value value, const char* what) {
  TRIREME_CHECK(map.emplace(state, std::move(value)).second, "{} got instance {}, position {} twice", what,
                state.instance, state.position);
}

}  // namespace

Transform::Transform(std::string name, std::unique_ptr<Layer> layer, NodeUpdates rule, std::uint64_t seed)
    : name_(std::move(name)), layer_(std::move(layer)), rule_(rule), params_(layer_->initial(seed, name_)) {}

void Transform::forward(int, const State& state, Payload payload, Outbox& out) {
  Saved saved{.values = {}, .version = updates_};
  Payload result = layer_->forward(params_, state, payload, saved.values);
  keep(saved_, state, std::move(saved), "a transform");
  ++open_[state.instance];
  out.forward(0, state, std::move(result));
}

void Transform::backward(int, const State& state, Payload gradient, Outbox& out) {
  const Saved saved = taken(saved_, state, "a transform");
  staleness_ = std::max(staleness_, updates_ - saved.version);
  Payload of_params(params_.size(), 0.0);
  Payload of_input = layer_->backward(params_, state, saved.values, gradient, of_params);
  if (!frozen_) keep(gradients_, state, std::move(of_params), "a transform's gradients");
  const auto open = open_.find(state.instance);
  const bool closed = --open->second == 0;
  if (closed) open_.erase(open);
  if (closed && static_cast<int>(gradients_.size()) >= rule_.min_update_frequency) update();
  out.backward(0, state, std::move(of_input));
}

void Transform::set_params(const Payload& params) {
  TRIREME_CHECK(params.size() == params_.size(), "{} elements for the {} parameters of {}", params.size(),
                params_.size(), name_);
  params_ = params;
}

void Transform::update() {
  if (gradients_.empty()) return;
  Payload sum(params_.size(), 0.0);
  for (const auto& [state, gradient] : gradients_) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i) params_[i] -= rule_.learning_rate * sum[i];
  gradients_.clear();
  ++updates_;
}

void Lookup::forward(int, const State& state, Payload payload, Outbox& out) {
  keep(sizes_, state, payload.size(), "a lookup");
  out.forward(0, state, look_(state));
}
void Lookup::backward(int, const State& state, Payload, Outbox& out) {
  out.backward(0, state, Payload(taken(sizes_, state, "a lookup"), 0.0));
}

void Cond::forward(int, const State& state, Payload payload, Outbox& out) {
  const int chosen = choose_(state);
  TRIREME_CHECK(chosen >= 0 && chosen < outputs_, "a cond of {} outputs chose {}", outputs_, chosen);
  out.forward(chosen, state, std::move(payload));
}
void Cond::backward(int, const State& state, Payload gradient, Outbox& out) {
  out.backward(0, state, std::move(gradient));
}

void Phi::forward(int input, const State& state, Payload payload, Outbox& out) {
  keep(origins_, state, input, "a phi");
  out.forward(0, state, std::move(payload));
}
void Phi::backward(int, const State& state, Payload gradient, Outbox& out) {
  out.backward(taken(origins_, state, "a phi"), state, std::move(gradient));
}

void Isu::forward(int, const State& state, Payload payload, Outbox& out) {
  const State next = update_(state);
  TRIREME_CHECK(inverse_(next) == state, "a state update that its inverse does not take back");
  out.forward(0, next, std::move(payload));
}
void Isu::backward(int, const State& state, Payload gradient, Outbox& out) {
  out.backward(0, inverse_(state), std::move(gradient));
}

void Concat::forward(int input, const State& state, Payload payload, Outbox& out) {
  auto& parts = waiting_[state];
  TRIREME_CHECK(parts.emplace(input, std::move(payload)).second, "a concat got input {} twice", input);
  if (static_cast<int>(parts.size()) < inputs_) return;
  std::vector<std::size_t> sizes;
  for (const auto& [port, part] : parts) sizes.push_back(part.size());
  keep(sizes_, state, std::move(sizes), "a concat");
  Payload all = joined(parts);
  waiting_.erase(state);
  out.forward(0, state, std::move(all));
}
void Concat::backward(int, const State& state, Payload gradient, Outbox& out) {
  std::size_t at = 0;
  int input = 0;
  for (const std::size_t size : taken(sizes_, state, "a concat")) {
    out.backward(input++, state, piece(gradient, at, size));
    at += size;
  }
}

void Split::forward(int, const State& state, Payload payload, Outbox& out) {
  std::size_t at = 0;
  for (std::size_t output = 0; output < sizes_.size(); at += sizes_[output++])
    out.forward(static_cast<int>(output), state, piece(payload, at, sizes_[output]));
  TRIREME_CHECK(at == payload.size(), "a split of {} elements got {}", at, payload.size());
}
void Split::backward(int output, const State& state, Payload gradient, Outbox& out) {
  auto& parts = waiting_[state];
  parts.emplace(output, std::move(gradient));
  if (parts.size() < sizes_.size()) return;
  Payload all = joined(parts);
  waiting_.erase(state);
  out.backward(0, state, std::move(all));
}

void Broadcast::forward(int, const State& state, Payload payload, Outbox& out) {
  for (int output = 0; output < outputs_; ++output) out.forward(output, state, payload);
}
void Broadcast::backward(int output, const State& state, Payload gradient, Outbox& out) {
  auto& parts = waiting_[state];
  parts.emplace(output, std::move(gradient));
  if (static_cast<int>(parts.size()) < outputs_) return;
  Payload sum = summed(parts);
  waiting_.erase(state);
  out.backward(0, state, std::move(sum));
}

void Group::forward(int, const State& state, Payload payload, Outbox& out) {
  const State group = grouping_.group_of(state);
  auto& members = groups_[group];
  const std::size_t size = payload.size();
  const bool is_new =
      members.emplace(grouping_.place_of(state), Member{.state = state, .payload = std::move(payload), .size = size})
          .second;
  TRIREME_CHECK(is_new, "a group got place {} of instance {} twice", grouping_.place_of(state), state.instance);
  if (static_cast<int>(members.size()) < grouping_.size_of(group)) return;
  Payload all;
  for (auto& [place, member] : members) {
    all.insert(all.end(), member.payload.begin(), member.payload.end());
    member.payload.clear();
  }
  out.forward(0, group, std::move(all));
}
void Group::backward(int, const State& state, Payload gradient, Outbox& out) {
  std::size_t at = 0;
  for (const auto& [place, member] : taken(groups_, state, "a group")) {
    out.backward(0, member.state, piece(gradient, at, member.size));
    at += member.size;
  }
}

void Ungroup::forward(int, const State& state, Payload payload, Outbox& out) {
  const auto members = static_cast<std::size_t>(grouping_.size_of(state));
  TRIREME_CHECK(members > 0 && payload.size() % members == 0, "{} elements are no {} equal members", payload.size(),
                members);
  const std::size_t size = payload.size() / members;
  waiting_[state] = {};
  for (std::size_t place = 0; place < members; ++place)
    out.forward(0, grouping_.member_at(state, static_cast<int>(place)), piece(payload, place * size, size));
}
void Ungroup::backward(int, const State& state, Payload gradient, Outbox& out) {
  const State group = grouping_.group_of(state);
  auto& parts = waiting_.at(group);
  parts.emplace(grouping_.place_of(state), std::move(gradient));
  if (static_cast<int>(parts.size()) < grouping_.size_of(group)) return;
  Payload all = joined(parts);
  waiting_.erase(group);
  out.backward(0, group, std::move(all));
}

void Spread::forward(int, const State& state, Payload payload, Outbox& out) {
  const int members = grouping_.size_of(state);
  if (members == 0) return out.backward(0, state, Payload(payload.size(), 0.0));
  keep(waiting_, state, {}, "a spread");
  for (int place = 0; place < members; ++place) out.forward(0, grouping_.member_at(state, place), payload);
}
void Spread::backward(int, const State& state, Payload gradient, Outbox& out) {
  const State group = grouping_.group_of(state);
  auto& parts = waiting_.at(group);
  parts.emplace(grouping_.place_of(state), std::move(gradient));
  if (static_cast<int>(parts.size()) < grouping_.size_of(group)) return;
  Payload sum = summed(parts);
  waiting_.erase(group);
  out.backward(0, group, std::move(sum));
}

void Aggregate::forward(int, const State& state, Payload payload, Outbox& out) {
  const State group = grouping_.group_of(state);
  auto& parts = waiting_[group];
  const int place = grouping_.place_of(state);
  TRIREME_CHECK(parts.emplace(place, std::move(payload)).second, "a sum got place {} of instance {} twice", place,
                state.instance);
  if (static_cast<int>(parts.size()) < grouping_.size_of(group)) return;
  Payload sum = summed(parts);
  waiting_.erase(group);
  out.forward(0, group, std::move(sum));
}
void Aggregate::backward(int, const State& state, Payload gradient, Outbox& out) {
  for (int place = 0; place < grouping_.size_of(state); ++place)
    out.backward(0, grouping_.member_at(state, place), gradient);
}

void Flatmap::forward(int, const State& state, Payload payload, Outbox& out) {
  auto made = expand_(state);
  TRIREME_CHECK(!made.empty(), "a flatmap made nothing of instance {}", state.instance);
  const bool is_new =
      open_.emplace(state.instance, Open{.state = state, .size = payload.size(), .missing = made.size()}).second;
  TRIREME_CHECK(is_new, "a flatmap got instance {} twice", state.instance);
  for (auto& [next, value] : made) out.forward(0, next, std::move(value));
}
void Flatmap::backward(int, const State& state, Payload, Outbox& out) {
  const auto found = open_.find(state.instance);
  TRIREME_CHECK(found != open_.end(), "a flatmap got a backward message of instance {}, which is not there",
                state.instance);
  if (--found->second.missing > 0) return;
  const Open open = found->second;
  open_.erase(found);
  out.backward(0, open.state, Payload(open.size, 0.0));
}

void Loss::forward(int, const State& state, Payload logits, Outbox& out) {
  const auto label = static_cast<std::size_t>(label_of_(state));
  TRIREME_CHECK(label < logits.size(), "label {} of {} classes", label, logits.size());
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  seen_[state.instance] = {.loss = log_sum - logits[label], .right = logits[label] == largest};
  Payload gradient(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    gradient[i] = std::exp(logits[i] - log_sum) - (i == label ? 1.0 : 0.0);
  out.backward(0, state, std::move(gradient));
}
void Loss::backward(int, const State&, Payload, Outbox&) { TRIREME_CHECK(false, "nothing comes back to a loss"); }

}  // namespace trireme::dataflow
