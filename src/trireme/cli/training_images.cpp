#include "trireme/cli/training_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/data/corpus/decompress.h"

namespace trireme::cli {
namespace {

constexpr const char* kHowToWrite =
    "write the pixels, then the class, separated by commas, or a symbol a pixel, a blank and the class";

std::string unpacked(const std::string& path) {
  const MappedFile file(path);
  const data::Compression how = data::compression_of(path);
  if (how == data::Compression::kNone) return std::string(file.text());
  std::string text;
  data::Decompressor unpack(how, file.text(), path);
  while (unpack.read(text)) {
  }
  return text;
}

/// The numbers of a line, the class last.
std::vector<double> numbers_of(std::string_view line, const std::string& where) {
  std::vector<double> numbers;
  const auto number = [&](const std::string& word) {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (end == word.c_str() || *end != '\0' || !(value >= 0) || value > 1e6)
      throw ConfigError(fmt::format("{}: \"{}\" is not a number from 0 on", where, word), kHowToWrite);
    return value;
  };
  if (line.find(',') != std::string_view::npos) {
    for (const std::string& word : split(std::string(line), ',')) numbers.push_back(number(word));
    return numbers;
  }
  const std::size_t blank = line.find(' ');
  for (const char c : line.substr(0, blank)) {
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : -1;
    if (value < 0) throw ConfigError(fmt::format("{}: '{}' is no pixel", where, c), kHowToWrite);
    numbers.push_back(value);
  }
  if (blank == std::string_view::npos) throw ConfigError(where + ": there is no class", kHowToWrite);
  numbers.push_back(number(std::string(trimmed(line.substr(blank)))));
  return numbers;
}

}  // namespace

LabelledImages read_images(const std::string& path) {
  LabelledImages images;
  double largest = 0;
  std::size_t images_read = 0, number = 0;
  for (const std::string& line : split(unpacked(path), '\n')) {
    ++number;
    const std::string_view bare = trimmed(line);
    if (bare.empty() || bare[0] == '#') continue;
    const std::string where = fmt::format("{}, line {}", path, number);
    const std::vector<double> numbers = numbers_of(bare, where);
    const auto side = static_cast<int>(std::lround(std::sqrt(static_cast<double>(numbers.size() - 1))));
    if (side < 1 || static_cast<std::size_t>(side * side) + 1 != numbers.size() ||
        (images.train.side != 0 && side != images.train.side))
      throw ConfigError(
          fmt::format("{}: {} pixels are no square image, or not as large as the others", where, numbers.size() - 1),
          kHowToWrite);
    images.train.side = images.test.side = side;
    spmd::ImageSet& set = images_read++ % 5 == 4 ? images.test : images.train;
    for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
      set.pixels.push_back(static_cast<float>(numbers[i]));
      largest = std::max(largest, numbers[i]);
    }
    if (numbers.back() != std::floor(numbers.back()))
      throw ConfigError(fmt::format("{}: {} is no class", where, numbers.back()), kHowToWrite);
    set.labels.push_back(static_cast<int>(numbers.back()));
  }
  if (images.test.labels.empty()) throw ConfigError(path + " has too few images", "give five at least");
  if (largest == 0) throw ConfigError(path + ": all pixels are 0", "give images");
  for (spmd::ImageSet* set : {&images.train, &images.test}) {
    for (float& pixel : set->pixels) pixel = static_cast<float>(pixel / largest);
  }
  return images;
}

}  // namespace trireme::cli
