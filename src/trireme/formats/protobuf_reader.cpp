#include "trireme/formats/protobuf_reader.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace trireme::formats {
namespace {

constexpr int kMostMessageDepth = 32;

}  // namespace

void ProtobufReader::fail(const std::string& why) const {
  throw FormatError(fmt::format("{}: byte {}: {}", source_, first_byte_ + at_, why), "is the file complete?");
}

std::uint64_t ProtobufReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at_ == bytes_.size()) fail("the bytes end within a number");
    const auto byte = static_cast<std::uint8_t>(bytes_[at_++]);
    if (shift == 63 && byte > 1) fail("a number has more than 64 bits");
    value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  fail("a number has more than ten bytes");
}

bool ProtobufReader::next() {
  if (at_ == bytes_.size()) return false;
  const std::uint64_t key = varint();
  if (key >> 3 == 0 || key >> 3 > 0x1FFFFFFF) fail(fmt::format("there is no field number {}", key >> 3));
  field_ = static_cast<int>(key >> 3);
  const auto take = [&](std::uint64_t count) {
    if (count > bytes_.size() - at_)
      fail(fmt::format("field {} has {} bytes, but {} are left", field_, count, bytes_.size() - at_));
    value_ = bytes_.substr(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
  };
  switch (key & 7) {
    case 0:
      wire_ = Wire::kVarint;
      number_ = varint();
      return true;
    case 1:
      wire_ = Wire::kFixed64;
      take(8);
      return true;
    case 2:
      wire_ = Wire::kBytes;
      take(varint());
      return true;
    case 5:
      wire_ = Wire::kFixed32;
      take(4);
      return true;
    default:
      fail(fmt::format("field {} has wire type {}, which there is not", field_, key & 7));
  }
}

void ProtobufReader::want(Wire wire, const char* what) const {
  if (wire_ != wire) fail(fmt::format("field {} is not {}", field_, what));
}

std::int64_t ProtobufReader::integer() const {
  want(Wire::kVarint, "an integer");
  return std::bit_cast<std::int64_t>(number_);
}

float ProtobufReader::real() const {
  want(Wire::kFixed32, "a number of 32 bits");
  float value = 0;
  std::memcpy(&value, value_.data(), sizeof value);  // little-endian, as the machines we run on
  return value;
}

std::string_view ProtobufReader::text() const {
  want(Wire::kBytes, "a string");
  return value_;
}

ProtobufReader ProtobufReader::message() const {
  want(Wire::kBytes, "a message");
  if (depth_ + 1 > kMostMessageDepth) fail(fmt::format("messages are nested more than {} deep", kMostMessageDepth));
  return {value_, source_, first_byte_ + static_cast<std::uint64_t>(value_.data() - bytes_.data()), depth_ + 1};
}

void ProtobufReader::append_integers(std::vector<std::int64_t>& values) const {
  if (wire_ == Wire::kVarint) return values.push_back(integer());
  want(Wire::kBytes, "an integer or packed integers");
  ProtobufReader packed = message();
  while (packed.at_ < packed.bytes_.size()) values.push_back(std::bit_cast<std::int64_t>(packed.varint()));
}

void ProtobufReader::append_reals(std::vector<float>& values) const {
  if (wire_ == Wire::kFixed32) return values.push_back(real());
  want(Wire::kBytes, "a number or packed numbers");
  if (value_.size() % sizeof(float) != 0) fail(fmt::format("{} bytes are no packed numbers of 32 bits", value_.size()));
  const std::size_t before = values.size();
  values.resize(before + value_.size() / sizeof(float));
  if (!value_.empty()) std::memcpy(values.data() + before, value_.data(), value_.size());
}

}  // namespace trireme::formats
