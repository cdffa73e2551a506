#include "trireme/data/corpus/thrift_reader.h"

namespace trireme::data {

void ThriftReader::fail(std::string_view what) const {
  throw formats::FormatError(fmt::format("{}: {} (byte {})", source_, what, first_byte_ + at_),
                             "is the file whole, and a Parquet file?");
}

void ThriftReader::enter() {
  constexpr int kMostDepth = 32;
  if (++depth_ > kMostDepth) fail("its metadata is nested too deeply");
}

unsigned ThriftReader::byte() {
  if (at_ >= bytes_.size()) fail("its metadata is cut short");
  return static_cast<unsigned char>(bytes_[at_++]);
}

std::uint64_t ThriftReader::varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const unsigned next = byte();
    value |= static_cast<std::uint64_t>(next & 0x7F) << shift;
    if (next < 0x80) return value;
  }
  fail("a number of its metadata has no end");
}

std::int64_t ThriftReader::integer() {
  const std::uint64_t value = varint();
  return static_cast<std::int64_t>(value >> 1 ^ (~(value & 1) + 1));  // zigzag
}

std::string_view ThriftReader::binary() {
  const std::uint64_t size = varint();
  if (size > bytes_.size() - at_) fail(fmt::format("a text of its metadata would have {} bytes", size));
  const std::string_view text = bytes_.substr(at_, size);
  at_ += size;
  return text;
}

ThriftReader::Head ThriftReader::list_head() {
  const unsigned head = byte();
  const std::uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
  if (count > bytes_.size() - at_) fail(fmt::format("a list of its metadata would have {} elements", count));
  return {static_cast<Type>(head & 0xF), count};
}

void ThriftReader::skip(Type type) {
  switch (type) {
    case Type::kTrue:
    case Type::kFalse:
      return;  // the value is in the type
    case Type::kByte:
      return void(byte());
    case Type::kI16:
    case Type::kI32:
    case Type::kI64:
      return void(varint());
    case Type::kDouble:
      for (int i = 0; i < 8; ++i) byte();
      return;
    case Type::kBinary:
      return void(binary());
    case Type::kList:
    case Type::kSet:
      // In lists a truth value is a byte of its own.
      return list([&](Type of) { of == Type::kTrue || of == Type::kFalse ? void(byte()) : skip(of); });
    case Type::kStruct:
      return structure([&](int, Type of) { skip(of); });
    default:
      fail(fmt::format("its metadata holds the type {}, which is not known", static_cast<int>(type)));
  }
}

}  // namespace trireme::data
