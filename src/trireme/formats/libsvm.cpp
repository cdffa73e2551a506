#include "trireme/formats/libsvm.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"

namespace trireme::formats {
namespace {

class LibsvmLine {
 public:
  LibsvmLine(std::string_view line, const std::string& name, std::size_t number)
      : line_(line.substr(0, line.find('#'))), name_(name), number_(number) {}

  bool at_end() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
    return at_ >= line_.size();
  }
  template <typename T>
  T number(const char* what) {
    T value{};
    const char *begin = line_.data() + at_, *end = line_.data() + line_.size();
    if (begin < end && *begin == '+') ++begin;
    const auto [stopped, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || stopped == begin) fail(fmt::format("{} is not a number", what));
    at_ = static_cast<std::size_t>(stopped - line_.data());
    return value;
  }
  void colon() {
    if (at_ >= line_.size() || line_[at_] != ':') fail("INDEX:VALUE was expected");
    ++at_;
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw IoError(fmt::format("{}:{}: {}", name_, number_, why), "a line is LABEL INDEX:VALUE INDEX:VALUE ...");
  }

 private:
  std::string_view line_;
  const std::string& name_;
  std::size_t number_, at_ = 0;
};

}  // namespace

SparseSamples parse_libsvm(std::string_view text, const std::string& name) {
  SparseSamples samples;
  std::set<double> labels;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    LibsvmLine line(text.substr(begin, end - begin), name, ++number);
    begin = end + 1;
    if (line.at_end()) continue;
    const auto label = line.number<double>("the label");
    labels.insert(label);
    if (labels.size() > 2 || !std::isfinite(label))
      line.fail(fmt::format("label {} is a third one, and this is regression on two", label));
    samples.labels.push_back(label);
    std::uint64_t last = 0;
    while (!line.at_end()) {
      const auto index = line.number<std::uint32_t>("an index");
      line.colon();
      const auto value = line.number<double>("a value");
      if (index <= last) line.fail(fmt::format("index {} comes after {}: indices begin with 1 and rise", index, last));
      if (!std::isfinite(value)) line.fail(fmt::format("the value of index {} is {}", index, value));
      last = index;
      if (value == 0) continue;
      samples.features.push_back(index - 1);
      samples.values.push_back(value);
    }
    samples.feature_count = std::max(samples.feature_count, last);
    samples.rows.push_back(samples.features.size());
  }
  if (labels.size() < 2)
    throw IoError(fmt::format("{} has {} different labels, and regression needs two", name, labels.size()));
  for (double& label : samples.labels) label = label == *labels.rbegin() ? 1 : -1;
  return samples;
}

SparseSamples read_libsvm(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return parse_libsvm(mapped.text(), file.string());
}

std::string libsvm_text(const SparseSamples& samples) {
  std::string text;
  for (std::size_t row = 0; row < samples.count(); ++row) {
    text += samples.labels[row] > 0 ? "+1" : "-1";
    for (std::size_t i = samples.rows[row]; i < samples.rows[row + 1]; ++i)
      text += fmt::format(" {}:{}", samples.features[i] + 1, samples.values[i]);
    text += '\n';
  }
  return text;
}

}  // namespace trireme::formats
