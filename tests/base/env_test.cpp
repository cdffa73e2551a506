#include "trireme/base/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using testing::HasSubstr;

class Env : public testing::Test {
 protected:
  void TearDown() override { unsetenv("TRIREME_COMM_ALGORITHM"); }
  static void set(const char* value) { setenv("TRIREME_COMM_ALGORITHM", value, 1); }
};

TEST_F(Env, UnsetAndEmptyAreTheSame) {
  unsetenv("TRIREME_COMM_ALGORITHM");
  EXPECT_EQ(env("TRIREME_COMM_ALGORITHM"), std::nullopt);
  set("");
  EXPECT_EQ(env("TRIREME_COMM_ALGORITHM"), std::nullopt);
  set("ring");
  EXPECT_EQ(env("TRIREME_COMM_ALGORITHM"), "ring");
}

TEST_F(Env, AVariableThatIsNotInTheTableIsADefect) { EXPECT_THROW((void)env("TRIREME_UNHEARD_OF"), InternalError); }

TEST_F(Env, WholeNumbersOnly) {
  set("12");
  EXPECT_EQ(env_int("TRIREME_COMM_ALGORITHM"), 12);
  for (const char* bad : {"twelve", "12x", "-1", "1.5", "99999999999"}) {
    set(bad);
    try {
      (void)env_int("TRIREME_COMM_ALGORITHM");
      FAIL() << bad << " was taken for a number";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.message(), HasSubstr("TRIREME_COMM_ALGORITHM"));
      EXPECT_THAT(error.message(), HasSubstr(bad));
    }
  }
}

TEST_F(Env, HelpNamesEveryVariableOnceAndGroupsStayTogether) {
  const std::string help = env_help();
  std::set<std::string_view> names;
  EnvGroup group = EnvGroup::kTrireme;
  for (const EnvVariable& row : env_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " is in the table twice";
    EXPECT_THAT(help, HasSubstr(std::string(row.name)));
    EXPECT_THAT(help, HasSubstr(std::string(row.meaning)));
    EXPECT_GE(row.group, group) << row.name << " stands outside its group";
    group = row.group;
  }
}

}  // namespace
}  // namespace trireme
