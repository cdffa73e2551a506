// tests/errors.h -- the words of an error that is expected.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

#include "trireme/base/error.h"

namespace trireme {

/// The message of the error of type E that `body` throws.
template <typename E = Error, typename Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.message();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

/// The same with its hint behind it.
template <typename Body>
std::string words_of(Body&& body) {
  std::string hint;
  const std::string message = message_of([&] {
    try {
      body();
    } catch (const Error& error) {
      hint = error.hint();
      throw;
    }
  });
  return message + " | " + hint;
}

}  // namespace trireme
