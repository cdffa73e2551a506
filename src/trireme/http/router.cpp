#include "trireme/http/router.h"

#include <algorithm>
#include <optional>

#include "trireme/base/text.h"

namespace trireme::http {
namespace {

bool is_param(std::string_view segment) { return segment.starts_with('{'); }
bool is_rest(std::string_view segment) { return segment.ends_with("...}"); }
std::string_view param_name(std::string_view segment) {
  return segment.substr(1, segment.size() - (is_rest(segment) ? 5 : 2));
}

// 0 is the most particular.
int rank_of(std::string_view segment) { return !is_param(segment) ? 0 : !is_rest(segment) ? 1 : 2; }

std::vector<int> ranks_of(const std::vector<std::string>& segments) {
  std::vector<int> ranks;
  for (const std::string& segment : segments) ranks.push_back(rank_of(segment));
  return ranks;
}

std::optional<Fields> matched(const std::vector<std::string>& pattern, const std::vector<std::string>& path) {
  Fields params;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (i >= path.size()) return std::nullopt;
    if (!is_param(pattern[i])) {
      if (pattern[i] != path[i]) return std::nullopt;
    } else if (!is_rest(pattern[i])) {
      if (path[i].empty()) return std::nullopt;
      params.emplace_back(param_name(pattern[i]), path[i]);
    } else {
      std::string rest = path[i];
      for (std::size_t k = i + 1; k < path.size(); ++k) rest += '/' + path[k];
      if (rest.empty()) return std::nullopt;
      params.emplace_back(param_name(pattern[i]), std::move(rest));
      return params;
    }
  }
  return pattern.size() == path.size() ? std::optional(std::move(params)) : std::nullopt;
}

}  // namespace

void Router::add(Route route) {
  TRIREME_CHECK(route.pattern.starts_with('/') && route.handler, "{} is no route", route.pattern);
  std::vector<std::string> segments = split(std::string_view(route.pattern).substr(1), '/');
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::string& segment = segments[i];
    const bool braces = segment.find_first_of("{}") != std::string::npos;
    const bool well_formed =
        !braces || (segment.starts_with('{') && segment.ends_with('}') && !param_name(segment).empty());
    TRIREME_CHECK(well_formed && (!is_rest(segment) || i + 1 == segments.size()), "the pattern {} is wrong at \"{}\"",
                  route.pattern, segment);
  }
  for (const Entry& entry : entries_)
    TRIREME_CHECK(entry.route.method != route.method || entry.route.pattern != route.pattern,
                  "the route {} {} is there twice", route.method, route.pattern);
  Entry entry{std::move(route), std::move(segments)};
  // The first match is the best one then.
  const auto place = std::ranges::upper_bound(entries_, ranks_of(entry.segments), {},
                                              [](const Entry& other) { return ranks_of(other.segments); });
  entries_.insert(place, std::move(entry));
}

Router::Match Router::find(std::string_view method, const Target& target, std::string& allowed) const {
  const std::string_view asked = method == "HEAD" ? "GET" : method;
  std::vector<std::string> methods;
  for (const Entry& entry : entries_) {
    std::optional<Fields> params = matched(entry.segments, target.segments);
    if (!params) continue;
    if (entry.route.method == asked) return {&entry.route, std::move(*params)};
    if (std::ranges::find(methods, entry.route.method) == methods.end()) methods.push_back(entry.route.method);
  }
  if (methods.empty()) throw HttpError(404, fmt::format("there is nothing at {}", target.path));
  if (std::ranges::find(methods, "GET") != methods.end()) methods.push_back("HEAD");
  std::ranges::sort(methods);
  allowed = fmt::format("{}", fmt::join(methods, ", "));
  throw HttpError(405, fmt::format("{} cannot be asked by {}, only by {}", target.path, method, allowed));
}

}  // namespace trireme::http
