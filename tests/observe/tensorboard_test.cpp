#include "trireme/observe/tensorboard.h"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "tests/observe/run_folder.h"

namespace trireme::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A decoder of its own, from the formats' descriptions: nothing is shared with the writer.

std::uint32_t plain_crc32c(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
  }
  return crc ^ 0xFFFFFFFF;
}

std::uint32_t plain_mask(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8; }

template <typename Value>
Value little(const std::string& text, std::size_t at) {
  Value value;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = little<std::uint64_t>(file, at);
    EXPECT_EQ(little<std::uint32_t>(file, at + 8), plain_mask(plain_crc32c(file.substr(at, 8))));
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(little<std::uint32_t>(file, at + 12 + length), plain_mask(plain_crc32c(records.back())));
    at += length + 16;
  }
  return records;
}

struct Fields {
  std::map<int, std::vector<std::string>> texts;
  std::map<int, std::uint64_t> numbers;
};

Fields decoded(const std::string& message) {
  Fields fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    const int field = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        fields.numbers[field] = varint();
        break;
      case 1:
        fields.numbers[field] = little<std::uint64_t>(message, at);
        at += 8;
        break;
      case 5:
        fields.numbers[field] = little<std::uint32_t>(message, at);
        at += 4;
        break;
      case 2: {
        const std::uint64_t length = varint();
        fields.texts[field].push_back(message.substr(at, length));
        at += length;
        break;
      }
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return fields;
    }
  }
  return fields;
}

class TensorBoard : public RunFolder {};

TEST_F(TensorBoard, ChecksumsAreThoseOfThePublishedExamples) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(plain_crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), plain_mask(0x8A9136AA));
  EXPECT_EQ(masked_crc32c(std::string(32, '\xFF')), plain_mask(0x62A8AB43));
  EXPECT_EQ(masked_crc32c(""), plain_mask(0));
}

TEST_F(TensorBoard, FilesDecodeToWhatWasWritten) {
  TensorBoardFile file(folder_, std::nullopt);
  EXPECT_THAT(file.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
  const std::vector<Scalar> first{{"train/loss", 2.5}, {"train/lr", std::nan("")}};
  file.scalars(1, first);
  file.scalars(std::int64_t{1} << 40, std::vector<Scalar>{{"train/loss", -0.125}});
  const auto records = records_of(read(file.path()));
  ASSERT_EQ(records.size(), 4U) << "version, start of the session, two steps";

  const Fields version = decoded(records[0]);
  EXPECT_THAT(version.texts.at(3), ElementsAre("brain.Event:2"));
  EXPECT_GT(std::bit_cast<double>(version.numbers.at(1)), 1.7e9);

  const Fields session = decoded(records[1]);
  EXPECT_EQ(session.numbers.at(2), 0U);
  EXPECT_EQ(decoded(session.texts.at(7).at(0)).numbers.at(1), 1U) << "SessionLog START";

  const Fields event = decoded(records[2]);
  EXPECT_EQ(event.numbers.at(2), 1U);
  const Fields summary = decoded(event.texts.at(5).at(0));
  ASSERT_EQ(summary.texts.at(1).size(), 2U);
  const Fields loss = decoded(summary.texts.at(1)[0]), lr = decoded(summary.texts.at(1)[1]);
  EXPECT_THAT(loss.texts.at(1), ElementsAre("train/loss"));
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(loss.numbers.at(2))), 2.5F);
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(lr.numbers.at(2)))));
  const Fields metadata = decoded(loss.texts.at(9).at(0));
  EXPECT_THAT(decoded(metadata.texts.at(1).at(0)).texts.at(1), ElementsAre("scalars"));
  EXPECT_EQ(metadata.numbers.at(4), 1U) << "DATA_CLASS_SCALAR";

  const Fields later = decoded(records[3]);
  EXPECT_EQ(later.numbers.at(2), std::uint64_t{1} << 40);
  const Fields again = decoded(decoded(later.texts.at(5).at(0)).texts.at(1).at(0));
  EXPECT_EQ(std::bit_cast<float>(static_cast<std::uint32_t>(again.numbers.at(2))), -0.125F);
  EXPECT_FALSE(again.texts.contains(9)) << "the plugin is named once a tag";
}

TEST_F(TensorBoard, AResumedRunIsANewFileThatTakesLaterStepsBack) {
  const TensorBoardFile before(folder_, std::nullopt);
  const TensorBoardFile after(folder_, 100);  // in the same second
  EXPECT_LT(before.path().filename().string(), after.path().filename().string()) << "read in the order of names";
  const auto records = records_of(read(after.path()));
  ASSERT_EQ(records.size(), 2U);
  const Fields event = decoded(records[1]);
  EXPECT_EQ(event.numbers.at(2), 101U);
  EXPECT_EQ(decoded(event.texts.at(7).at(0)).numbers.at(1), 1U) << "SessionLog START";
}

}  // namespace
}  // namespace trireme::observe
