#include <fmt/ranges.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/layout/mesh.h"

namespace trireme::layout {
namespace {

constexpr std::size_t kGroupsShown = 8;

std::string groups_text(const Mesh& mesh, const AxisNames& axes) {
  const std::vector<std::vector<int>> groups = mesh.groups(axes);
  std::string text;
  for (std::size_t i = 0; i < groups.size() && i < kGroupsShown; ++i) {
    const std::size_t shown = std::min(groups[i].size(), 2 * kGroupsShown);
    text += fmt::format("{}{{{}{}}}", i == 0 ? "" : " ", fmt::join(groups[i].begin(), groups[i].begin() + shown, " "),
                        shown < groups[i].size() ? " ..." : "");
  }
  if (groups.size() > kGroupsShown) text += fmt::format(" and {} more", groups.size() - kGroupsShown);
  return text;
}

}  // namespace

Mesh parse_mesh(std::string_view text) {
  std::vector<Axis> axes;
  std::string spaced(text);
  for (char& c : spaced) {
    if (c == ',' || c == '\t' || c == '\n') c = ' ';
  }
  for (const std::string& word : split(spaced, ' ')) {
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string number = equals == std::string::npos ? "" : word.substr(equals + 1);
    int size = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), size);
    if (error != std::errc() || end != number.data() + number.size()) {
      throw ConfigError(fmt::format("\"{}\" in mesh \"{}\" is not NAME=SIZE", word, text),
                        fmt::format("write {}=1", name.empty() ? "dp" : name));
    }
    axes.push_back({name, size});
  }
  return Mesh(std::move(axes));
}

std::string to_text(const Mesh& mesh) {
  std::vector<std::string> words;
  for (const Axis& axis : mesh.axes()) words.push_back(fmt::format("{}={}", axis.name, axis.size));
  return fmt::format("{}", fmt::join(words, " "));
}

std::string describe(const Mesh& mesh, int lines) {
  std::string text = fmt::format("mesh {}: {}\n", mesh.axes().empty() ? "without axes" : to_text(mesh),
                                 counted(static_cast<std::size_t>(mesh.ranks()), "rank"));
  std::vector<TextTable::Column> columns{{"rank", TextTable::Align::kRight}};
  for (const Axis& axis : mesh.axes()) columns.push_back({axis.name, TextTable::Align::kRight});
  TextTable ranks(std::move(columns));
  for (int rank = 0; rank < std::min(lines, mesh.ranks()); ++rank) {
    std::vector<std::string> cells{std::to_string(rank)};
    for (const int coordinate : mesh.coordinates(rank)) cells.push_back(std::to_string(coordinate));
    ranks.add(std::move(cells));
  }
  text += ranks.text();
  if (mesh.ranks() > lines) text += fmt::format("... and {} more\n", mesh.ranks() - lines);

  TextTable groups({{"axis"}, {"size", TextTable::Align::kRight}, {"groups"}});
  for (const std::string& name : mesh.wide_axes()) {
    groups.add({name, std::to_string(mesh.size(name)), groups_text(mesh, {name})});
  }
  return text + (groups.rows() == 0 ? "" : groups.text());
}

nlohmann::ordered_json to_json(const Mesh& mesh) {
  nlohmann::ordered_json axes = nlohmann::ordered_json::array();
  for (const Axis& axis : mesh.axes()) axes.push_back({{"name", axis.name}, {"size", axis.size}});
  return {{"axes", std::move(axes)}, {"ranks", mesh.ranks()}};
}

Mesh mesh_from_json(const nlohmann::ordered_json& json) {
  std::vector<Axis> axes;
  try {
    for (const auto& axis : json.at("axes")) {
      axes.push_back({axis.at("name").get<std::string>(), axis.at("size").get<int>()});
    }
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("this is no mesh: {}", error.what()),
                      R"(write {"axes": [{"name": "dp", "size": 2}]})");
  }
  return Mesh(std::move(axes));
}

}  // namespace trireme::layout
