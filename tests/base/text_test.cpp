#include "trireme/base/text.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

const std::vector<std::string> kKeys = {"transport", "ranks", "ranks_per_node", "deadline"};

TEST(EditDistance, CountsInsertedDroppedChangedAndSwappedLetters) {
  EXPECT_EQ(edit_distance("ranks", "ranks"), 0);
  EXPECT_EQ(edit_distance("RANKS", "ranks"), 0);
  EXPECT_EQ(edit_distance("rank", "ranks"), 1);
  EXPECT_EQ(edit_distance("ranks", "rasks"), 1);
  EXPECT_EQ(edit_distance("rnaks", "ranks"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
}

TEST(DidYouMean, NamesTheNearestWord) {
  EXPECT_EQ(did_you_mean("tranpsort", kKeys), "; did you mean \"transport\"?");
  EXPECT_EQ(did_you_mean("rank", kKeys), "; did you mean \"ranks\"?");
  EXPECT_EQ(did_you_mean("ranks_per_nod", kKeys), "; did you mean \"ranks_per_node\"?");
}

TEST(DidYouMean, StaysSilentWhenNothingIsNear) {
  EXPECT_EQ(did_you_mean("colour", kKeys), "");
  EXPECT_EQ(did_you_mean("x", kKeys), "");
  EXPECT_EQ(did_you_mean("x", std::vector<std::string>{"y"}), "") << "nothing of the word would remain";
  EXPECT_EQ(did_you_mean(std::string(1 << 20, 'r'), kKeys), "");
}

TEST(Words, AreCountedAndListed) {
  EXPECT_EQ(counted(1, "problem"), "1 problem");
  EXPECT_EQ(counted(2, "problem"), "2 problems");
  EXPECT_EQ(listed(std::vector<std::string>{}), "");
  EXPECT_EQ(listed(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b", "c"}), "a, b and c");
}

TEST(Words, AreTrimmedSplitAndWrapped) {
  EXPECT_EQ(trimmed(" \t a b \n"), "a b");
  EXPECT_EQ(trimmed("   "), "");
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  EXPECT_EQ(wrapped("one two three four", 9), (std::vector<std::string>{"one two", "three", "four"}));
  EXPECT_EQ(wrapped("unbreakable", 4), (std::vector<std::string>{"unbreakable"}));
}

TextTable sample() {
  TextTable table({{"op", {}}, {"bytes", TextTable::Align::kRight}, {"note", {}}});
  table.add({"all_reduce", "64", "a|b"});
  table.add({"µ", "1048576", ""});
  return table;
}

TEST(TextTable, AlignsColumnsAndEndsLinesClean) {
  EXPECT_EQ(sample().text("  "),
            "  op            bytes  note\n"
            "  all_reduce       64  a|b\n"
            "  µ           1048576\n");
}

TEST(TextTable, WrapsTheLastColumnUnderItself) {
  TextTable table({{"key", {}}, {"meaning", {}}});
  table.add({"ranks", "how many ranks there are, each a thread of this process"});
  EXPECT_EQ(table.text("", 38),
            "key    meaning\n"
            "ranks  how many ranks there are, each\n"
            "       a thread of this process\n");
}

TEST(TextTable, IsMarkdownToo) {
  EXPECT_EQ(sample().markdown(),
            "| op | bytes | note |\n"
            "|---|---:|---|\n"
            "| all_reduce | 64 | a\\|b |\n"
            "| µ | 1048576 |  |\n");
}

TEST(TextTable, RefusesARowOfTheWrongLength) { EXPECT_THROW(sample().add({"a", "b"}), InternalError); }

}  // namespace
}  // namespace trireme
