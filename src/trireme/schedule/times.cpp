#include "trireme/schedule/times.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::schedule {

double Times::of(Op op) const {
  switch (op) {
    case Op::kForward:
      return forward;
    case Op::kBackward:
      return backward();
    case Op::kBackwardInput:
      return backward_input;
    case Op::kBackwardWeight:
      return backward_weight;
    case Op::kRecompute:
      return recompute.value_or(forward);
    case Op::kForwardDoubled:
      return 2 * forward;
    case Op::kForwardBackward:
      return pair();
    case Op::kReduceGradients:
      return reduce;
    case Op::kOptimizerStep:
      return optimizer;
    case Op::kStashWeights:
      return stash;
    case Op::kPredictWeights:
      return predict;
    default:
      return 0;
  }
}

Times Times::scaled(double factor) const {
  Times times = *this;
  for (double* time :
       {&times.forward, &times.backward_input, &times.backward_weight, &times.reduce, &times.stash, &times.predict})
    *time *= factor;
  if (times.recompute) *times.recompute *= factor;
  if (times.overlapped) *times.overlapped *= factor;
  return times;
}

namespace {

double number_in(std::string_view text, std::string_view word) {
  double value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
    throw ConfigError(fmt::format("times: \"{}\": \"{}\" is no time", word, text),
                      "a time is a number from 0 up, as in f=1,b=1.5,w=0.5");
  return value;
}

}  // namespace

Times parse_times(std::string_view text) {
  const std::vector<std::string> keys{"f", "b", "w", "r", "fb", "g", "o", "s", "p", "x", "e", "link"};
  Times times;
  for (const std::string& word : split(text, ',')) {
    const auto equals = word.find('=');
    const std::string_view key = trimmed(std::string_view(word).substr(0, equals));
    const std::string_view rest = equals == std::string::npos ? "" : trimmed(std::string_view(word).substr(equals + 1));
    const double value = number_in(rest, word);
    if (key == "f")
      times.forward = value;
    else if (key == "b")
      times.backward_input = value;
    else if (key == "w")
      times.backward_weight = value;
    else if (key == "r")
      times.recompute = value;
    else if (key == "fb")
      times.overlapped = value;
    else if (key == "g")
      times.reduce = value;
    else if (key == "o")
      times.optimizer = value;
    else if (key == "s")
      times.stash = value;
    else if (key == "p")
      times.predict = value;
    else if (key == "x")
      times.exchange = value;
    else if (key == "e")
      times.experts = value;
    else if (key == "link")
      times.link = value;
    else
      throw ConfigError(fmt::format("times: there is no \"{}\"", key), fmt::format("times are {}", listed(keys)));
  }
  return times;
}

std::string to_text(const Times& times) {
  std::string text = fmt::format("f={},b={},w={}", times.forward, times.backward_input, times.backward_weight);
  const auto add = [&](std::string_view key, double value) {
    if (value != 0) text += fmt::format(",{}={}", key, value);
  };
  if (times.recompute) text += fmt::format(",r={}", *times.recompute);
  if (times.overlapped) text += fmt::format(",fb={}", *times.overlapped);
  add("g", times.reduce);
  add("o", times.optimizer);
  add("s", times.stash);
  add("p", times.predict);
  add("x", times.exchange);
  if (times.experts != Times{}.experts) text += fmt::format(",e={}", times.experts);
  add("link", times.link);
  return text;
}

}  // namespace trireme::schedule
