// formats/protobuf_reader.h -- the wire format of Protocol Buffers, read from bytes that nobody has checked.
//
//   ProtobufReader in(bytes, "net.onnx", /*first_byte=*/0);
//   while (in.next()) {
//     if (in.field() == 1) name = in.text();
//     if (in.field() == 7) read_graph(in.message());      // a reader of the part, which knows where it lies
//   }                                                     // fields that are not asked for are skipped
//
// Every mistake is a FormatError with the file and the byte. Nesting is limited.
// Depends on: format_error.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trireme/formats/format_error.h"

namespace trireme::formats {

class ProtobufReader {
 public:
  /// Both stay borrowed. `first_byte`: where in the file the bytes begin.
  ProtobufReader(std::string_view bytes, std::string_view source, std::uint64_t first_byte = 0, int depth = 0)
      : bytes_(bytes), source_(source), first_byte_(first_byte), depth_(depth) {}

  /// The next field; false at the end.
  bool next();
  int field() const { return field_; }

  // The field's value; FormatError where its type on the wire is another.
  std::int64_t integer() const;
  float real() const;
  std::string_view text() const;
  ProtobufReader message() const;
  /// Of a repeated field, packed or one by one: appends.
  void append_integers(std::vector<std::int64_t>& values) const;
  void append_reals(std::vector<float>& values) const;

  [[noreturn]] void fail(const std::string& why) const;

 private:
  enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  std::uint64_t varint();
  void want(Wire wire, const char* what) const;

  std::string_view bytes_, source_;
  std::uint64_t first_byte_ = 0;
  int depth_ = 0;
  std::size_t at_ = 0;
  int field_ = 0;
  Wire wire_ = Wire::kVarint;
  std::uint64_t number_ = 0;
  std::string_view value_;
};

}  // namespace trireme::formats
