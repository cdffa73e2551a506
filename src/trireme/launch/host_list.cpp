#include "trireme/launch/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/host_expression.h"
#include "trireme/launch/quote.h"

namespace trireme::launch {
namespace {

[[noreturn]] void refuse_host(std::string_view entry, const std::string& why) {
  throw ConfigError(fmt::format("\"{}\" is no host: {}", entry, why),
                    "write names or addresses with a number of ranks: a:4,b:4 or user@node[1-8]:8 or [fd00::7]:2");
}

bool is_ipv6(std::string_view text) {
  return std::ranges::count(text, ':') >= 2 &&
         text.substr(0, text.find('%')).find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos;
}

int slots_of(std::string_view entry, std::string_view digits) {
  int slots = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), slots);
  if (error != std::errc{} || end != digits.data() + digits.size() || slots < 1)
    refuse_host(entry, fmt::format("\"{}\" is not a number of ranks", digits));
  return slots;
}

/// The form without brackets of numbers.
Host one_host(std::string_view entry) {
  Host host;
  std::string_view rest = entry;
  if (const auto at = rest.rfind('@'); at != rest.npos) {
    host.user = rest.substr(0, at);
    rest.remove_prefix(at + 1);
  }
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == rest.npos || !is_ipv6(rest.substr(1, close - 1)))
      refuse_host(entry, "brackets hold an address of IPv6 or numbers");
    host.address = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (rest.starts_with(':')) {
      host.slots = slots_of(entry, rest.substr(1));
    } else if (!rest.empty()) {
      refuse_host(entry, "after the bracket comes a colon and a number");
    }
  } else if (is_ipv6(rest)) {
    host.address = rest;
  } else {
    const auto colon = rest.find(':');
    host.address = rest.substr(0, colon);
    if (colon != rest.npos) host.slots = slots_of(entry, rest.substr(colon + 1));
  }
  // ssh takes what begins with '-' for an option.
  if (host.address.empty() || host.address[0] == '-' || host.user.starts_with('-'))
    refuse_host(entry, "it has no name");
  for (const char letter : host.login()) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte <= ' ' || byte == 127) refuse_host(entry, "spaces and control characters are in no name");
  }
  return host;
}

}  // namespace

std::vector<Host> parse_hosts(std::string_view text) {
  std::vector<Host> hosts;
  std::set<std::string> seen;
  for (const std::string& entry : formats::split_outside_brackets(text)) {
    const std::string_view whole = trimmed(entry);
    const auto open = whole.find('[');
    const bool numbers = open != whole.npos && whole.find_first_of(":]", open) != whole.npos &&
                         whole[whole.find_first_of(":]", open)] == ']';
    std::vector<std::string> names = {std::string(whole)};
    try {
      if (numbers) names = formats::expand_hosts(whole, "--hosts");
    } catch (const formats::FormatError& error) {
      refuse_host(whole, error.message());
    }
    for (const std::string& name : names) {
      hosts.push_back(one_host(name));
      if (!seen.insert(hosts.back().address).second)
        refuse_host(whole, fmt::format("{} is named twice", hosts.back().address));
    }
  }
  if (hosts.empty()) refuse_host(text, "the list is empty");
  return hosts;
}

std::vector<std::string> words_on(const Host& host, const std::string& script, const std::string& ssh) {
  if (host.address == "localhost") return {"sh", "-c", script};
  std::vector<std::string> words;
  for (const std::string& word : split(ssh, ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  words.push_back(host.login());
  // ssh joins its words and gives them to the user's own shell, which may be no sh: one word for it, one for sh.
  words.push_back(sh_line(std::vector<std::string>{"sh", "-c", script}));
  return words;
}

}  // namespace trireme::launch
