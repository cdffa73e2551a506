#include "trireme/train/engine/freeze.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/models/published.h"
#include "trireme/spec/optim.h"

namespace trireme::train {
namespace {

struct PublishedName {
  std::string name, param;
  bool optional = false;
};

/// Under every prefix that files have; nothing for a family without a published format.
std::vector<std::vector<PublishedName>> published_names(const spec::ModelShape& shape) {
  std::vector<std::vector<PublishedName>> all;
  for (const models::FamilyFormat* format : models::family_formats()) {
    if (!models::is_format_of(*format, shape)) continue;
    const auto skeleton = models::build(shape);
    for (const std::string_view prefix : format->prefixes) {
      for (const bool fused : {false, true}) {
        if (fused && !shape.experts.used()) continue;
        auto& names = all.emplace_back();
        for (const models::PublishedTensor& tensor :
             format->tensors(*skeleton, {.prefix = std::string(prefix), .fused_experts = fused}))
          names.push_back({tensor.name, tensor.param->name, tensor.optional});
      }
    }
    break;
  }
  return all;
}

/// The names with '*' for numbers, each once.
std::vector<std::string> kinds_of(const std::vector<std::string>& names) {
  std::vector<std::string> kinds;
  for (const std::string& name : names) {
    std::string kind;
    for (const std::string& part : split(name, '.')) {
      const bool number = !part.empty() && std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c); });
      kind += (kind.empty() ? "" : ".") + (number ? std::string("*") : part);
    }
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

[[noreturn]] void refuse_pattern(const std::string& pattern, const std::vector<std::string>& all,
                                 const std::vector<std::vector<PublishedName>>& published) {
  std::vector<std::string> theirs;
  if (!published.empty())
    for (const PublishedName& tensor : published.front()) theirs.push_back(tensor.name);
  std::string there = fmt::format("there are {}", listed(kinds_of(all)));
  if (!theirs.empty()) there += fmt::format("; or, as Hugging Face names them, {}", listed(kinds_of(theirs)));
  throw ConfigError(
      fmt::format("train.freeze: no parameter is called \"{}\"{}; {}", pattern, did_you_mean(pattern, all), there),
      "'*' stands for any text: \"layers.0.*\"");
}

/// The parameters whose published tensors all match.
void freeze_published(const std::vector<std::string>& patterns, const std::vector<PublishedName>& names,
                      std::set<std::string>& frozen) {
  const auto matched = [&](const PublishedName& tensor) {
    return std::ranges::any_of(patterns, [&](const auto& pattern) { return spec::matches(pattern, tensor.name); });
  };
  std::map<std::string, std::vector<std::string>> in, out;
  for (const PublishedName& tensor : names) {
    if (matched(tensor)) {
      in[tensor.param].push_back(tensor.name);
    } else if (!tensor.optional) {
      out[tensor.param].push_back(tensor.name);
    }
  }
  for (const auto& [param, inside] : in) {
    if (const auto rest = out.find(param); rest != out.end())
      throw ConfigError(fmt::format("train.freeze: {} is only a part of the parameter {}, which also is {}",
                                    inside.front(), param, listed(rest->second)),
                        fmt::format("a parameter is frozen as a whole: add \"{}\"", fmt::join(rest->second, "\", \"")));
    frozen.insert(param);
  }
}

}  // namespace

std::set<std::string> frozen_params(const std::vector<std::string>& patterns, const spec::ModelShape& shape,
                                    const std::vector<std::string>& all) {
  std::set<std::string> frozen;
  std::vector<std::string> others;  // patterns that match none of our names
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (const std::string& name : all) {
      if (!spec::matches(pattern, name)) continue;
      any = true;
      frozen.insert(name);
    }
    if (!any) others.push_back(pattern);
  }
  if (!others.empty()) {
    const auto published = published_names(shape);
    for (const std::string& pattern : others) {
      const bool known = std::ranges::any_of(published, [&](const auto& names) {
        return std::ranges::any_of(names, [&](const auto& tensor) { return spec::matches(pattern, tensor.name); });
      });
      if (!known) refuse_pattern(pattern, all, published);
    }
    for (const auto& names : published) freeze_published(others, names, frozen);
  }
  if (!all.empty() && std::ranges::all_of(all, [&](const auto& name) { return frozen.contains(name); }))
    throw ConfigError("train.freeze matches every parameter, so there is nothing to train", "leave some out");
  return frozen;
}

}  // namespace trireme::train
