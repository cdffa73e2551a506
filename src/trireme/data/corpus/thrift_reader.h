// data/corpus/thrift_reader.h -- Thrift's compact protocol, read from bytes that nobody has checked.
//
//   ThriftReader in(bytes, "t.parquet", /*first_byte=*/4);
//   in.structure([&](int field, ThriftReader::Type type) { field == 1 ? void(rows = in.integer()) : in.skip(type); });
//
// Every mistake is a FormatError with the file and the byte. Nesting is limited.
// Depends on: formats.
#pragma once

#include <cstdint>
#include <string_view>

#include "trireme/formats/format_error.h"

namespace trireme::data {

class ThriftReader {
 public:
  enum class Type : std::uint8_t {
    kStop = 0,
    kTrue = 1,
    kFalse = 2,
    kByte = 3,
    kI16 = 4,
    kI32 = 5,
    kI64 = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStruct = 12
  };

  /// Both stay borrowed. `first_byte`: where in the file the bytes begin.
  ThriftReader(std::string_view bytes, std::string_view source, std::uint64_t first_byte)
      : bytes_(bytes), source_(source), first_byte_(first_byte) {}

  /// Calls `member` with each field's number and type; it reads the value, or skips it.
  template <typename Member>
  void structure(Member&& member) {
    enter();
    for (int field = 0;;) {
      const unsigned head = byte();
      const auto type = static_cast<Type>(head & 0xF);
      if (type == Type::kStop) break;
      field = head >> 4 != 0 ? field + static_cast<int>(head >> 4) : static_cast<int>(integer() & 0x7FFF);
      member(field, type);
    }
    --depth_;
  }
  /// Calls `element` so many times; it reads one.
  template <typename Element>
  void list(Element&& element) {
    enter();
    const auto [type, count] = list_head();
    for (std::uint64_t i = 0; i < count; ++i) element(type);
    --depth_;
  }
  /// Of any size.
  std::int64_t integer();
  std::string_view binary();
  void skip(Type type);

  std::size_t position() const { return at_; }
  [[noreturn]] void fail(std::string_view what) const;

 private:
  struct Head {
    Type type;
    std::uint64_t count;
  };
  void enter();
  Head list_head();
  unsigned byte();
  std::uint64_t varint();

  std::string_view bytes_, source_;
  std::uint64_t first_byte_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace trireme::data
