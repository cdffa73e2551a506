// observe/tensorboard.h -- TensorBoard's event files, written by hand.
//
// A file is a row of records (length, checksum, bytes, checksum: the framing that TensorFlow gave its record files) and
// each record a protobuf message Event. Only what scalars need is encoded: the version, the start of a session, and
// summaries with one value a tag. https://github.com/tensorflow/tensorboard holds the messages' definitions.
// Depends on: base, append_file.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "trireme/observe/append_file.h"

namespace trireme::observe {

struct Scalar {
  std::string_view tag;  // "train/loss"
  double value = 0;      // kept as a 32-bit float
};

class TensorBoardFile {
 public:
  /// Begins a new file in `folder`, named so that TensorBoard reads it after those that are there. With
  /// `resume_after_step`, TensorBoard forgets what older files say of later steps.
  TensorBoardFile(const std::filesystem::path& folder, std::optional<std::int64_t> resume_after_step);

  const std::filesystem::path& path() const { return file_.path(); }
  /// One record, hence one write(), with all values of a step.
  void scalars(std::int64_t step, std::span<const Scalar> values);

 private:
  AppendFile file_;
  std::set<std::string, std::less<>> described_;  // tags whose plugin was named: the first value of each says it
};

/// The checksum of the framing: CRC-32C (Castagnoli), turned and offset so that checksums of checksums stay good.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace trireme::observe
