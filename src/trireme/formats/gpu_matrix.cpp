#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/topology_files.h"

namespace trireme::formats {
namespace {

constexpr std::size_t kMostColumns = 512;

[[noreturn]] void fail_matrix(const std::string& name, std::size_t line, const std::string& what) {
  throw FormatError(fmt::format("{}: {} (line {})", name, what, line), "give what `nvidia-smi topo -m` prints");
}

/// Words between blanks, without the codes that underline the header.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  for (std::size_t i = 0; i <= line.size(); ++i) {
    const char letter = i < line.size() ? line[i] : ' ';
    if (letter == '\x1b') {
      while (i < line.size() && line[i] != 'm') ++i;
    } else if (letter == ' ' || letter == '\t' || letter == '\r') {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else {
      word += letter;
    }
  }
  return words;
}

bool is_numbered(std::string_view word, std::string_view prefix, std::size_t number) {
  return word == fmt::format("{}{}", prefix, number);
}

int count_after_nv(std::string_view cell) {
  int count = 0;
  if (!cell.starts_with("NV")) return 0;
  cell.remove_prefix(2);
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), count);
  return error == std::errc{} && end == cell.data() + cell.size() && count >= 1 && count <= 1000 ? count : 0;
}

bool is_link_word(std::string_view cell) {
  static constexpr std::string_view kWords[] = {"X", "SYS", "NODE", "PHB", "PXB", "PIX"};
  return std::ranges::find(kWords, cell) != std::end(kWords) || count_after_nv(cell) > 0;
}

}  // namespace

int GpuMatrix::nvlinks(int a, int b) const {
  return count_after_nv(links.at(static_cast<std::size_t>(a)).at(static_cast<std::size_t>(b)));
}

GpuMatrix read_gpu_matrix(std::string_view text, const std::string& name) {
  GpuMatrix matrix;
  std::size_t columns = 0, number = 0;
  bool legend = false;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (columns == 0) {
      if (words[0] != "GPU0") continue;  // what was typed before it
      while (columns < words.size() && is_numbered(words[columns], "GPU", columns)) ++columns;
      matrix.gpus = static_cast<int>(columns);
      // Adapters are NIC0 ..., or in older drivers by their own names; then come words about CPUs.
      while (columns < words.size() && words[columns] != "CPU" && words[columns] != "NUMA") {
        if (words[columns].starts_with("GPU")) fail_matrix(name, number, "devices are not numbered in their order");
        matrix.nics.push_back(words[columns++]);
      }
      if (columns > kMostColumns) fail_matrix(name, number, "more columns than any machine has");
      continue;
    }
    const std::size_t row = matrix.links.size();
    if (row < static_cast<std::size_t>(matrix.gpus)) {
      if (!is_numbered(words[0], "GPU", row))
        fail_matrix(name, number, fmt::format("this should be the row of GPU{}", row));
      if (words.size() < columns + 1)
        fail_matrix(name, number, fmt::format("the row has fewer than {} cells", columns));
      std::vector<std::string> cells(words.begin() + 1, words.begin() + 1 + static_cast<std::ptrdiff_t>(columns));
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (!is_link_word(cells[i]) || (cells[i] == "X") != (i == row))
          fail_matrix(name, number, fmt::format("{} is no connection of GPU{}", shown(cells[i]), row));
      }
      matrix.links.push_back(std::move(cells));
      continue;
    }
    if (words[0] == "NIC" && words.size() == 2 && words[1] == "Legend:") legend = true;
    if (!legend || words.size() != 2 || !words[0].ends_with(':')) continue;
    const auto nic = std::ranges::find(matrix.nics, words[0].substr(0, words[0].size() - 1));
    if (nic != matrix.nics.end()) *nic = words[1];
  }
  if (matrix.gpus == 0) fail_matrix(name, number, "there is no table of devices");
  if (matrix.links.size() != static_cast<std::size_t>(matrix.gpus))
    fail_matrix(name, number, fmt::format("rows end after GPU{}", static_cast<int>(matrix.links.size()) - 1));
  for (int a = 0; a < matrix.gpus; ++a) {
    for (int b = 0; b < a; ++b) {
      if (matrix.nvlinks(a, b) != matrix.nvlinks(b, a))
        fail_matrix(name, number, fmt::format("GPU{} and GPU{} do not agree on their NVLinks", b, a));
    }
  }
  return matrix;
}

std::string to_text(const GpuMatrix& matrix) {
  std::string out;
  for (int i = 0; i < matrix.gpus; ++i) out += fmt::format("\tGPU{}", i);
  for (std::size_t i = 0; i < matrix.nics.size(); ++i) out += fmt::format("\tNIC{}", i);
  out += "\tCPU Affinity\tNUMA Affinity\n";
  for (std::size_t i = 0; i < matrix.links.size(); ++i) {
    out += fmt::format("GPU{}", i);
    for (const std::string& cell : matrix.links[i]) out += cell == "X" ? "\t X " : "\t" + cell;
    out += "\t0-63\t0\n";
  }
  if (matrix.nics.empty()) return out;
  out += "\nNIC Legend:\n\n";
  for (std::size_t i = 0; i < matrix.nics.size(); ++i) out += fmt::format("  NIC{}: {}\n", i, matrix.nics[i]);
  return out;
}

}  // namespace trireme::formats
