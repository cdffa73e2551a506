#define TRIREME_ARITHMETIC_ENTRY kArithmeticPlain
#include "trireme/comm/arithmetic/body.h"
