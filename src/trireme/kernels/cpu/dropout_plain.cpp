#define TRIREME_DROPOUT_TABLE kDropoutPlain
#include "trireme/kernels/cpu/dropout_body.h"
