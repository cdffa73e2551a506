#include "trireme/formats/host_expression.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>

#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

constexpr std::size_t kMostLetters = 1 << 24;

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<std::uint64_t> digits_value(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  constexpr std::size_t kMostDigits = 18;
  if (!is_digits(text) || text.size() > kMostDigits || error != std::errc{} || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

class HostExpander {
 public:
  HostExpander(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  std::vector<std::string> all() {
    std::vector<std::string> hosts;
    std::size_t begin = 0;
    for (const std::string& part : split_outside_brackets(text_)) {
      std::vector<std::string> names = {""};
      at_ = begin;
      expand(part, names);
      for (std::string& host : names) {
        if (host.empty()) fail("a host without a name");
        hosts.push_back(std::move(host));
        if (hosts.size() > kMostHosts) fail("more hosts than any machine has");
      }
      begin += part.size() + 1;
    }
    return hosts;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: {} in {} (byte {})", name_, what, shown(text_), at_),
                      "hosts look like gpu[007-012,020],login1");
  }

  void expand(std::string_view part, std::vector<std::string>& names) {
    while (!part.empty()) {
      const auto open = part.find('[');
      const std::string_view plain = part.substr(0, open);
      for (const char letter : plain) {
        const auto byte = static_cast<unsigned char>(letter);
        if (byte <= ' ' || byte == 127 || letter == ']' || letter == '=' || letter == '\\')
          fail("a letter that no host name has");
      }
      // Few letters may stand for many hosts, but not for all memory.
      if (names.size() > 1 && names.size() * (names[0].size() + plain.size()) > kMostLetters)
        fail("more letters than the names of any machine have");
      for (std::string& host : names) host += plain;
      if (open == part.npos) return;
      const auto close = part.find(']', open);
      at_ += open;
      if (close == part.npos) fail("a bracket that is never closed");
      multiply(part.substr(open + 1, close - open - 1), names);
      at_ += close + 1 - open;
      part.remove_prefix(close + 1);
    }
  }

  void multiply(std::string_view ranges, std::vector<std::string>& names) {
    std::vector<std::string> numbers;
    while (true) {
      const auto comma = ranges.find(',');
      const std::string_view range = ranges.substr(0, comma);
      const auto dash = range.find('-');
      const std::string_view low = range.substr(0, dash), high = dash == range.npos ? low : range.substr(dash + 1);
      const auto first = digits_value(low), last = digits_value(high);
      if (!first || !last || *last < *first) fail(fmt::format("{} is no range of numbers", shown(range)));
      if (*last - *first >= kMostHosts) fail("more hosts than any machine has");
      for (std::uint64_t i = *first; i <= *last; ++i) {
        numbers.push_back(fmt::format("{:0{}}", i, low.size()));
        if (numbers.size() * names.size() > kMostHosts) fail("more hosts than any machine has");
      }
      if (comma == ranges.npos) break;
      ranges.remove_prefix(comma + 1);
    }
    if (names.size() * numbers.size() * (names[0].size() + numbers[0].size()) > kMostLetters)
      fail("more letters than the names of any machine have");
    std::vector<std::string> products;
    products.reserve(names.size() * numbers.size());
    for (const std::string& host : names) {
      for (const std::string& number : numbers) products.push_back(host + number);
    }
    names = std::move(products);
  }

  std::string_view text_, name_;
  std::size_t at_ = 0;
};

/// "gpu007x" is gpu, 007 and x: the last number of a name.
struct NumberedHost {
  std::string_view before, digits, after;
  explicit NumberedHost(std::string_view host) : before(host) {
    std::size_t end = host.size();
    while (end > 0 && std::isdigit(static_cast<unsigned char>(host[end - 1])) == 0) --end;
    std::size_t begin = end;
    while (begin > 0 && std::isdigit(static_cast<unsigned char>(host[begin - 1])) != 0) --begin;
    if (begin == end || end - begin > 18) return;
    before = host.substr(0, begin), digits = host.substr(begin, end - begin), after = host.substr(end);
  }
};

}  // namespace

std::vector<std::string> split_outside_brackets(std::string_view text) {
  std::vector<std::string> parts = {""};
  bool inside = false;
  for (const char letter : text) {
    if (letter == '[') inside = true;
    if (letter == ']') inside = false;
    if (letter == ',' && !inside) {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

std::vector<std::string> expand_hosts(std::string_view text, std::string_view name) {
  return HostExpander(text, name).all();
}

std::string compress_hosts(const std::vector<std::string>& hosts) {
  std::string out;
  for (std::size_t i = 0; i < hosts.size();) {
    const NumberedHost first(hosts[i]);
    std::string ranges;
    std::size_t next = i;
    while (next < hosts.size() && !first.digits.empty()) {
      const NumberedHost low(hosts[next]);
      if (low.before != first.before || low.after != first.after || low.digits.empty()) break;
      // As far as each is the one after the one before, in as many digits.
      std::uint64_t value = *digits_value(low.digits);
      std::size_t last = next;
      for (; last + 1 < hosts.size(); ++last, ++value) {
        const NumberedHost high(hosts[last + 1]);
        if (high.before != first.before || high.after != first.after ||
            high.digits != fmt::format("{:0{}}", value + 1, low.digits.size()))
          break;
      }
      if (!ranges.empty()) ranges += ',';
      ranges +=
          last == next ? std::string(low.digits) : fmt::format("{}-{}", low.digits, NumberedHost(hosts[last]).digits);
      next = last + 1;
    }
    if (!out.empty()) out += ',';
    if (next <= i + 1) {
      out += hosts[i++];
    } else {
      out += fmt::format("{}[{}]{}", first.before, ranges, first.after);
      i = next;
    }
  }
  return out;
}

}  // namespace trireme::formats
