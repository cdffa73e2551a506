#define TRIREME_EMBEDDING_TABLE kEmbeddingV4
#include "trireme/kernels/cpu/embedding_body.h"
