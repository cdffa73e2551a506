#include "trireme/base/fiber.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace trireme {
namespace {

TEST(Fiber, TwoBodiesGoOnInTurn) {
  std::string order;
  Fiber* inside = nullptr;
  const auto body = [&](char name) {
    return [&order, &inside, name] {
      for (int part = 0; part < 3; ++part) {
        order += name;
        if (part < 2) inside->pause();
      }
    };
  };
  Fiber a(body('a')), b(body('b'));
  while (!a.ended() || !b.ended()) {
    for (Fiber* fiber : {&a, &b}) {
      inside = fiber;
      fiber->resume();
    }
  }
  EXPECT_EQ(order, "ababab");
  EXPECT_ANY_THROW(a.resume()) << "it has ended";
}

TEST(Fiber, WhatItThrowsComesOutWhereItWasResumed) {
  Fiber* self = nullptr;
  Fiber fiber([&] {
    self->pause();
    throw std::runtime_error("in the second part");
  });
  self = &fiber;
  fiber.resume();
  EXPECT_FALSE(fiber.ended());
  EXPECT_THROW(fiber.resume(), std::runtime_error);
  EXPECT_TRUE(fiber.ended());
}

/// What a body holds when nobody goes on with it is let go of, innermost first; one that never began held nothing.
TEST(Fiber, AnUnfinishedBodyIsUnwound) {
  std::vector<int> gone;
  struct Held {
    std::vector<int>& gone;
    int number;
    ~Held() { gone.push_back(number); }
  };
  {
    Fiber* self = nullptr;
    Fiber fiber([&] {
      const Held outer{gone, 1};
      const Held inner{gone, 2};
      self->pause();
      ADD_FAILURE() << "nobody went on";
    });
    self = &fiber;
    fiber.resume();
    const Fiber never([&] { ADD_FAILURE() << "nobody began"; });
  }
  EXPECT_EQ(gone, (std::vector<int>{2, 1}));
}

/// Deep recursions of a body have room of their own.
TEST(Fiber, HasAStackOfItsOwn) {
  std::int64_t sum = 0;
  Fiber* self = nullptr;
  const std::function<std::int64_t(int)> deep = [&](int depth) -> std::int64_t {
    volatile char room[1024] = {};
    room[0] = static_cast<char>(depth);
    if (depth == 0) self->pause();
    return depth == 0 ? room[0] : 1 + deep(depth - 1);
  };
  Fiber fiber([&] { sum = deep(2000); });
  self = &fiber;
  fiber.resume();
  EXPECT_EQ(sum, 0);
  fiber.resume();
  EXPECT_EQ(sum, 2000);
}

}  // namespace
}  // namespace trireme
