// The cost table as TOML: strict reading, atomic writing.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/cost/cost_table.h"

namespace trireme::cost {

namespace {

/// Reads one document; knows its name for messages.
class Reader {
 public:
  explicit Reader(const std::string& source) : source_(source) {}

  CostTable read(std::string_view text) const {
    CostTable table;
    for (const auto& [transport, node] : parse(text)) {
      if (!table.transports().contains(transport.str()))
        wrong(node, transport.str(), "is no transport", "use threads, mpi, ucx or emulated");
      read_transport(as_table(node, transport.str()), std::string(transport.str()), table.of(transport.str()));
    }
    return table;
  }

 private:
  toml::table parse(std::string_view text) const {
    try {
      return toml::parse(text);
    } catch (const toml::parse_error& error) {
      throw ConfigError(fmt::format("{}:{}: {}", source_, error.source().begin.line, error.description()));
    }
  }

  void read_transport(const toml::table& table, const std::string& path, TransportCost& costs) const {
    for (const auto& [key, node] : table) {
      const std::string inner = fmt::format("{}.{}", path, key.str());
      const toml::table& section = as_table(node, inner);
      const auto algorithm = parse_algorithm(key.str());
      if (key == "inside" || key == "across") {
        const auto [alpha, beta, gamma] = numbers(section, inner, std::array{"alpha", "beta", "gamma"});
        (key == "inside" ? costs.links.inside : costs.links.across) = {alpha, beta, gamma};
      } else if (algorithm && *algorithm != Algorithm::kAuto) {
        read_algorithm(section, inner, *algorithm, costs);
      } else {
        wrong(node, inner, "is neither a link nor an algorithm",
              "use inside, across, or the name of an algorithm such as direct or ring");
      }
    }
  }

  void read_algorithm(const toml::table& section, const std::string& path, Algorithm algorithm,
                      TransportCost& costs) const {
    for (const auto& [key, node] : section) {
      const std::string inner = fmt::format("{}.{}", path, key.str());
      const auto op = parse_collective(key.str());
      if (!op) wrong(node, inner, "is no operation", "use all_reduce, broadcast, ...");
      const auto [alpha, beta] = numbers(as_table(node, inner), inner, std::array{"alpha", "beta"});
      costs.measured[{algorithm, *op}] = {alpha, beta};
    }
  }

  /// Exactly these keys, each a number that can be a cost.
  template <std::size_t size>
  std::array<double, size> numbers(const toml::table& table, const std::string& path,
                                   const std::array<const char*, size>& keys) const {
    std::array<double, size> values{};
    for (std::size_t index = 0; index < size; ++index) {
      const toml::node* node = table.get(keys[index]);
      if (node == nullptr)
        wrong(table, path, fmt::format("lacks {}", keys[index]), fmt::format("give {}", fmt::join(keys, ", ")));
      const auto value = node->value<double>();
      if (!node->is_number() || !std::isfinite(*value) || *value < 0)
        wrong(*node, fmt::format("{}.{}", path, keys[index]), "must be a number of seconds, zero or more");
      values[index] = *value;
    }
    for (const auto& [key, node] : table)
      if (std::find(keys.begin(), keys.end(), key.str()) == keys.end())
        wrong(node, fmt::format("{}.{}", path, key.str()), "is not a constant of the model",
              fmt::format("give {}", fmt::join(keys, ", ")));
    return values;
  }

  const toml::table& as_table(const toml::node& node, std::string_view path) const {
    if (!node.is_table()) wrong(node, path, "must be a table");
    return *node.as_table();
  }

  [[noreturn]] void wrong(const toml::node& node, std::string_view path, std::string_view why,
                          std::string hint = {}) const {
    throw ConfigError(fmt::format("{}:{}: {} {}", source_, node.source().begin.line, path, why), std::move(hint));
  }

  std::string source_;
};

}  // namespace

CostTable parse_cost_table(std::string_view text, const std::string& source) { return Reader(source).read(text); }

CostTable read_cost_table(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    throw IoError(fmt::format("the cost table {} cannot be read: {}", path.string(), std::strerror(errno)),
                  "write one with: trireme bench comm --calibrate");
  return parse_cost_table(text.str(), path.string());
}

std::string to_text(const CostTable& table) {
  std::string text =
      "# What communication costs: seconds a message (alpha), a byte moved (beta), a byte combined (gamma).\n"
      "# `trireme bench comm --calibrate` measures and writes it; the algorithm `auto` chooses by it.\n";
  const auto add = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
  };
  for (const auto& [transport, costs] : table.transports()) {
    const auto link = [&](std::string_view where, const LinkCost& cost) {
      add("\n[{}.{}]\nalpha = {}\nbeta = {}\ngamma = {}\n", transport, where, cost.alpha, cost.beta, cost.gamma);
    };
    link("inside", costs.links.inside);
    link("across", costs.links.across);
    auto last = Algorithm::kAuto;
    for (const auto& [key, measured] : costs.measured) {
      const auto [algorithm, op] = key;
      if (algorithm != last) add("\n[{}.{}]\n", transport, name(algorithm));
      last = algorithm;
      add("{} = {{ alpha = {}, beta = {} }}\n", name(op), measured.alpha, measured.beta);
    }
  }
  return text;
}

void write_cost_table(const CostTable& table, const std::filesystem::path& path) {
  // The name has the process in it, so that two that calibrate at once do not write into one file.
  const std::filesystem::path fresh = fmt::format("{}.{}.tmp", path.string(), ::getpid());
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  const bool written = (file << to_text(table)) && file.flush();
  file.close();
  std::error_code failed;
  if (written && file) std::filesystem::rename(fresh, path, failed);
  if (written && file && !failed) return;
  const std::string why = failed ? failed.message() : std::strerror(errno);
  std::filesystem::remove(fresh, failed);
  throw IoError(fmt::format("the cost table {} cannot be written: {}", path.string(), why),
                "name a file in a folder that exists and can be written to");
}

}  // namespace trireme::cost
