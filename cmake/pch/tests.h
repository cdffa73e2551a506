// Precompiled for the tests of the tensor-free rooms.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rooms.h"
