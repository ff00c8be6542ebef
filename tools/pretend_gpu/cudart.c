/* A CUDA runtime without a GPU: one device, whose memory is the host's.
 *
 * It is loaded before NVIDIA's own. Copies and events wait in the queue of their stream until
 * somebody has to wait for them, so that code which does not wait reads what was there before. A
 * kernel does nothing; `kernels.py` runs them on the CPU. Types are those of cuda_runtime_api.h.
 */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define OK(name, ...) cudaError_t name(__VA_ARGS__) { return cudaSuccess; }
#define NO(name, ...) cudaError_t name(__VA_ARGS__) { return last = cudaErrorNotSupported; }

static __thread cudaError_t last;
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
#define ENTER pthread_mutex_lock(&lock)
#define LEAVE pthread_mutex_unlock(&lock)

/* Memory: what was allocated, so that a pointer is known to be of the device or page-locked. */

enum { PAGEABLE, LOCKED, DEVICE };
typedef struct { char *at; size_t size; int kind; } Range;
static Range ranges[1 << 16];
static int used;
static size_t taken;
static const size_t total = (size_t)80 << 30;

static cudaError_t take(void **out, size_t size, int kind) {
  size = (size + 4095) & ~(size_t)4095;
  if (!size) size = 4096;
  ENTER;
  void *at = MAP_FAILED;
  if (used < 1 << 16 && (kind != DEVICE || taken + size <= total))
    at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) { LEAVE; return last = cudaErrorMemoryAllocation; }
  if (kind == DEVICE) taken += size;
  ranges[used++] = (Range){at, size, kind};
  LEAVE;
  *out = at;
  return cudaSuccess;
}

static cudaError_t forget(void *at, int unmap) {
  ENTER;
  for (int i = 0; i < used; i++) {
    if (ranges[i].at != (char *)at) continue;
    if (ranges[i].kind == DEVICE) taken -= ranges[i].size;
    if (unmap) munmap(at, ranges[i].size);
    ranges[i] = ranges[--used];
    break;
  }
  LEAVE;
  return cudaSuccess;
}

static int kind_of(const void *at) {
  int kind = PAGEABLE;
  ENTER;
  for (int i = 0; i < used && !kind; i++)
    if ((char *)at >= ranges[i].at && (char *)at < ranges[i].at + ranges[i].size)
      kind = ranges[i].kind;
  LEAVE;
  return kind;
}

cudaError_t cudaMalloc(void **p, size_t n) { return take(p, n, DEVICE); }
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return take(p, n, DEVICE); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { return take(p, n, LOCKED); }
cudaError_t cudaFree(void *p) { return p ? forget(p, 1) : cudaSuccess; }
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return forget(p, 1); }
cudaError_t cudaFreeHost(void *p) { return forget(p, 1); }
cudaError_t cudaHostUnregister(void *p) { return forget(p, 0); }
cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
  ENTER;
  ranges[used++] = (Range){p, n, LOCKED};
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
  *all = total;
  *left = total - taken;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  int kind = kind_of(p);
  memset(a, 0, sizeof *a);
  a->type = kind == DEVICE ? cudaMemoryTypeDevice
            : kind == LOCKED ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  a->device = kind ? 0 : -1;
  a->devicePointer = kind ? (void *)p : 0;
  a->hostPointer = kind == LOCKED ? (void *)p : 0;
  return cudaSuccess;
}

/* Streams and events: a queue each, worked off only when it is waited for. */

enum { COPY, FILL, RECORD, WAIT, CALL };
typedef struct Stream Stream;
typedef struct { long asked, done; Stream *stream; struct timespec at; } Event;
typedef struct Work {
  int kind, value;
  void *to, *staged;
  const void *from;
  size_t size;
  Event *event;
  long serial;
  cudaHostFn_t call;
  struct Work *next;
} Work;
struct Stream { cudaStream_t id; Work *first, *final; Stream *next; };
static Stream *streams;
static long serials;
static unsigned seed = 7;

static Stream *of(cudaStream_t id) {
  for (Stream *s = streams; s; s = s->next)
    if (s->id == id) return s;
  Stream *s = calloc(1, sizeof *s);
  s->id = id;
  s->next = streams;
  return streams = s;
}

static void until(Event *event, long serial);

static void step(Stream *s) {
  Work *w = s->first;
  s->first = w->next;
  if (!s->first) s->final = 0;
  switch (w->kind) {
  case COPY: memcpy(w->to, w->staged ? w->staged : w->from, w->size); free(w->staged); break;
  case FILL: memset(w->to, w->value, w->size); break;
  case RECORD:
    if (w->event->done < w->serial) w->event->done = w->serial;
    clock_gettime(CLOCK_MONOTONIC, &w->event->at);
    break;
  case WAIT: until(w->event, w->serial); break;
  case CALL: w->call(w->to); break;
  }
  free(w);
}

static void drain(Stream *s) { while (s->first) step(s); }

static void until(Event *event, long serial) {
  while (event->done < serial && event->stream && event->stream->first) step(event->stream);
}

static void queue(cudaStream_t id, Work work) {
  Stream *s = of(id);
  Work *w = malloc(sizeof *w);
  *w = work;
  w->next = 0;
  if (s->final) s->final->next = w; else s->first = w;
  s->final = w;
}

void pretend_drain(unsigned long id) { ENTER; drain(of((cudaStream_t)id)); LEAVE; }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k,
                            cudaStream_t s) {
  ENTER;
  Work w = {COPY, .to = to, .from = from, .size = n};
  if (kind_of(from) == PAGEABLE) w.staged = memcpy(malloc(n), from, n);  /* as a driver does */
  queue(s, w);
  if (kind_of(to) == PAGEABLE) drain(of(s));
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, cudaStream_t s) {
  return cudaMemcpyAsync(to, from, n, 0, s);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t tp, const void *from, size_t fp, size_t w, size_t h,
                              enum cudaMemcpyKind k, cudaStream_t s) {
  for (size_t i = 0; i < h; i++) cudaMemcpyAsync((char *)to + i * tp, (char *)from + i * fp, w, k, s);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) {
  ENTER;
  drain(of(0));
  memcpy(to, from, n);
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s) {
  ENTER;
  queue(s, (Work){FILL, .to = to, .value = value, .size = n});
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t n) {
  ENTER;
  drain(of(0));
  memset(to, value, n);
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  *e = calloc(1, sizeof(Event));  /* never freed: a queue may still hold it */
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t s, unsigned flags) {
  Event *e = (Event *)event;
  ENTER;
  e->asked = ++serials;
  e->stream = of(s);
  queue(s, (Work){RECORD, .event = e, .serial = e->asked});
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second) {
  Event *a = (Event *)first, *b = (Event *)second;
  if (a->done < a->asked || b->done < b->asked) return last = cudaErrorNotReady;
  *ms = (b->at.tv_sec - a->at.tv_sec) * 1e3 + (b->at.tv_nsec - a->at.tv_nsec) / 1e6;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  Event *e = (Event *)event;
  ENTER;
  int ready = e->done >= e->asked;
  /* Or else who asks again and again would do so for ever. */
  if (!ready && rand_r(&seed) % 4 == 0 && e->stream->first) step(e->stream);
  LEAVE;
  return ready ? cudaSuccess : (last = cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  ENTER;
  until((Event *)e, ((Event *)e)->asked);
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  static long next = 0x1000;
  ENTER;
  *s = (cudaStream_t)(next += 16);
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { pretend_drain((unsigned long)s); return 0; }
cudaError_t cudaStreamQuery(cudaStream_t s) {
  ENTER;
  int ready = !of(s)->first;
  LEAVE;
  return ready ? cudaSuccess : (last = cudaErrorNotReady);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned flags) {
  Event *e = (Event *)event;
  ENTER;
  if (e->done < e->asked) queue(s, (Work){WAIT, .event = e, .serial = e->asked});
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t call, void *data) {
  ENTER;
  queue(s, (Work){CALL, .to = data, .call = call});
  LEAVE;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  ENTER;
  for (Stream *s = streams; s; s = s->next) drain(s);
  LEAVE;
  return cudaSuccess;
}
OK(cudaEventDestroy, cudaEvent_t e)
OK(cudaStreamDestroy, cudaStream_t s)
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) { *p = 0; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) {
  *c = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *c,
                                     unsigned long long *id, cudaGraph_t *g,
                                     const cudaGraphNode_t **n, const cudaGraphEdgeData **e,
                                     size_t *count) {
  *c = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  return cudaSuccess;
}
NO(cudaStreamBeginCapture, cudaStream_t s, enum cudaStreamCaptureMode m)
NO(cudaStreamEndCapture, cudaStream_t s, cudaGraph_t *g)
OK(cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *m)

/* The device. */

OK(cudaSetDevice, int n)
OK(cudaDeviceEnablePeerAccess, int a, unsigned flags)
OK(cudaProfilerStart, void)
OK(cudaProfilerStop, void)
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *n) { *n = 0; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *c, int a, int b) { *c = 0; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *a, int *b) { *a = 0; *b = -5; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int d) {
  snprintf(s, n, "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  *v = a == cudaDevAttrMaxThreadsPerBlock ? 1024 : a == cudaDevAttrMultiProcessorCount ? 132
       : a == cudaDevAttrComputeCapabilityMajor ? 9 : a == cudaDevAttrWarpSize ? 32 : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "pretended GPU");
  p->totalGlobalMem = total;
  p->major = 9;
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerBlock = 49152;
  p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = 50 << 20;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = 0; return e; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorName(cudaError_t e) { return "cudaErrorOfPretendedGpu"; }
const char *cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "out of memory" : "not there on the pretended GPU";
}

/* The driver, as far as torch asks it. */

static int nothing(void) { return 0; }
static int context(int d, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
static int said(int e, const char **s) { *s = "error of the pretended driver"; return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned v,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *r) {
  *f = !strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)context
       : !strcmp(name, "cuGetErrorString") ? (void *)said : (void *)nothing;
  if (r) *r = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned *f, int *active) { return context(d, f, active); }
int cuGetErrorString(int e, const char **s) { return said(e, s); }

/* Kernels: none of them runs, and the first launch of each is told. */

static struct { const void *at; const char *name; int told; } kernels[1 << 17];
static int known;
static void launched(const void *at) {
  for (int i = 0; i < known; i++)
    if (kernels[i].at == at && !kernels[i].told++)
      fprintf(stderr, "pretended GPU: this kernel did nothing: %s\n", kernels[i].name);
}
void **__cudaRegisterFatBinary(void *x) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **h) {}
void __cudaUnregisterFatBinary(void **h) {}
char __cudaInitModule(void **h) { return 0; }
void __cudaRegisterVar(void **h, char *v, char *a, const char *n, int e, size_t s, int c, int g) {}
void __cudaRegisterFunction(void **h, const char *at, char *d, const char *name, int limit, void *t,
                            void *b, void *bd, void *gd, int *w) {
  if (known < 1 << 17) {
    kernels[known].at = at;
    kernels[known++].name = name;
  }
}
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t n, void *s) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *n, void *s) {
  memset(g, 0, sizeof *g);
  *n = 0;
  *(void **)s = 0;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *k, const void *f) { *k = (cudaKernel_t)f; return 0; }
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) {
  launched((void *)k);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) {
  launched(f);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) {
  launched(f);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->binaryVersion = a->ptxVersion = 90;
  return cudaSuccess;
}
OK(cudaFuncSetAttribute, const void *f, enum cudaFuncAttribute a, int v)
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b,
                                                                   size_t s, unsigned flags) {
  *n = 2;
  return cudaSuccess;
}
OK(cudaMemcpyToSymbol, const void *y, const void *s, size_t n, size_t o, enum cudaMemcpyKind k)
cudaError_t cudaGetSymbolAddress(void **p, const void *s) { *p = (void *)s; return cudaSuccess; }
