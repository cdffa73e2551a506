#include "trireme/comm/control/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace trireme::comm::control {
namespace {

using testing::HasSubstr;

const std::vector<Message> kMessages = {
    {.type = MessageType::kHello, .rank = 3, .number = 8, .key = "job"},
    {.type = MessageType::kHeartbeat},
    {.type = MessageType::kAdd, .id = ~0ULL, .number = -1, .key = "counter"},
    {.type = MessageType::kReply, .flag = true, .rank = -5, .id = 1ULL << 40, .number = INT64_MIN, .value = "\0\xff"},
    {.type = MessageType::kAnswer, .value = std::string(3000, 'v')},
};

std::string stream() {
  std::string bytes = preface();
  for (const Message& message : kMessages) bytes += encode(message);
  return bytes;
}

TEST(Wire, MessagesSurviveAnyCutOfTheStream) {
  const std::string bytes = stream();
  for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{100}, bytes.size()}) {
    Decoder decoder(kMaxFrameBytes);
    std::vector<Message> out;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      decoder.feed(std::string_view(bytes).substr(at, piece));
      while (auto message = decoder.next()) out.push_back(*message);
    }
    EXPECT_EQ(out, kMessages) << "in pieces of " << piece;
  }
}

std::string refusal(std::string_view bytes, std::size_t max_bytes = kMaxHelloBytes) {
  Decoder decoder(max_bytes);
  decoder.feed(bytes);
  try {
    while (decoder.next()) {
    }
  } catch (const WireError& error) {
    return error.message();
  }
  return "";
}

TEST(Wire, StrangersAreKnownByTheirFirstBytes) {
  EXPECT_THAT(refusal("GET / HTTP/1.1\r\n"), HasSubstr("began with \"GET / HTTP/1.1\\x0d\\x0a\""));
  EXPECT_THAT(refusal("\x16\x03\x01"), HasSubstr("began with \"\\x16\\x03\\x01\""));
  EXPECT_THAT(refusal("TRIX"), HasSubstr("does not speak"));
  EXPECT_EQ(refusal("TRI"), "");  // so far so good
}

TEST(Wire, AnotherVersionIsNamed) {
  std::string bytes = preface();
  bytes[8] = 77;
  EXPECT_THAT(refusal(bytes), HasSubstr("version 77 of the control protocol, this side version 2"));
}

TEST(Wire, FramesOutsideTheLimitsAreRefusedBeforeTheyArrive) {
  const std::string header = preface();
  EXPECT_THAT(refusal(header + std::string("\xff\xff\xff\xff", 4)), HasSubstr("4294967295 bytes"));
  EXPECT_THAT(refusal(header + std::string("\x01\x00\x00\x00", 4)), HasSubstr("frame of 1 bytes"));
  const std::string large = encode({.type = MessageType::kSet, .value = std::string(kMaxHelloBytes, 'x')});
  EXPECT_THAT(refusal(header + large.substr(0, 4)), HasSubstr("where 30 to 4096 are allowed"));
  EXPECT_EQ(refusal(header + large, kMaxFrameBytes), "");
}

TEST(Wire, AFrameThatContradictsItselfIsRefused) {
  std::string frame = encode({.type = MessageType::kSet, .key = "key", .value = "value"});
  frame[4] = 99;
  EXPECT_THAT(refusal(preface() + frame), HasSubstr("unknown type 99"));
  frame[4] = static_cast<char>(MessageType::kSet);
  frame[4 + 22] = 100;  // the key's length
  EXPECT_THAT(refusal(preface() + frame), HasSubstr("a key of 100 and a value of 5"));
}

// Whatever comes, the decoder gives messages or a WireError: it neither crashes nor reads past the end (sanitizers
// see).
TEST(Wire, NoiseNeverGetsFurtherThanAnError) {
  std::mt19937 random(20240607);
  const std::string good = stream();
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (int flips = static_cast<int>(random() % 4); flips >= 0; --flips) {
      bytes[12 + random() % (bytes.size() - 12)] = static_cast<char>(random());
    }
    (void)refusal(bytes.substr(0, random() % (bytes.size() + 1)), kMaxFrameBytes);
  }
}

}  // namespace
}  // namespace trireme::comm::control
