/* A stand-in for libnvidia-ml.so.1, for machines without a GPU. The file that NVML_STAND_IN names has a line for
 * each GPU, and may change at any time:
 *
 *     UUID BUS MILLIWATTS SWING REASONS XID STATE
 *
 * The power is MILLIWATTS plus SWING times a sine of a period of two seconds. REASONS are the bits of the clocks'
 * event reasons. XID is a fault to be reported once, or 0. STATE is ok, lost, denied (a GPU of somebody else), or mig (a
 * part of a GPU). What this does not know is refused: a damaged file aborts, unknown arguments are invalid.
 * With -DOLD it is a driver that lacks the energy counter and the new name of the reasons.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, TIMEOUT = 10, LOST = 15 };
enum { MOST = 16 };

typedef struct {
    char uuid[96], bus[32], state[16];
    unsigned milliwatts, swing;
    unsigned long long reasons;
    unsigned xid;
    int watched, reported;
} Gpu;
typedef struct { char legacy[16]; unsigned numbers[5]; char bus[32]; } Pci;
typedef struct { Gpu *device; unsigned long long kind, data; unsigned parts[2]; } Event;

static Gpu gpus[MOST];
static int count, initialised, events;
static struct timespec changed;
static double began;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void look(void) {
    const char *name = getenv("NVML_STAND_IN");
    struct stat found;
    if (!name || stat(name, &found)) abort();
    if (!memcmp(&found.st_mtim, &changed, sizeof changed)) return;
    FILE *file = fopen(name, "r");
    if (!file) abort();
    char line[256];
    int number = 0;
    while (fgets(line, sizeof line, file)) {
        Gpu gpu = gpus[number];
        unsigned xid = gpu.xid;
        if (number == MOST || sscanf(line, "%95s %31s %u %u %llx %u %15s", gpu.uuid, gpu.bus, &gpu.milliwatts,
                                     &gpu.swing, &gpu.reasons, &gpu.xid, gpu.state) != 7) abort();
        if (xid != gpu.xid) gpu.reported = 0;
        gpus[number++] = gpu;
    }
    fclose(file);
    count = number;
    changed = found.st_mtim;
}

static int is(const Gpu *gpu, const char *state) { return !strcmp(gpu->state, state); }

static int refused(const Gpu *gpu) {
    if (!initialised) return UNINITIALIZED;
    look();
    if (gpu < gpus || gpu >= gpus + count) return INVALID_ARGUMENT;
    return is(gpu, "lost") ? LOST : SUCCESS;
}

static int unmeasured(const Gpu *gpu) {
    int code = refused(gpu);
    return code ? code : is(gpu, "mig") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlInit_v2(void) {
    memset(gpus, 0, sizeof gpus);
    memset(&changed, 0, sizeof changed);
    look();
    initialised = 1;
    began = now();
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *number) {
    if (!initialised) return UNINITIALIZED;
    look();
    *number = 0;
    for (int i = 0; i < count; i++) *number += !is(&gpus[i], "mig");
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **device) {
    if (!initialised) return UNINITIALIZED;
    look();
    for (int i = 0; i < count; i++)
        if (!is(&gpus[i], "mig") && !index--) {
            if (is(&gpus[i], "denied")) return NO_PERMISSION;
            if (is(&gpus[i], "lost")) return LOST;
            *device = &gpus[i];
            return SUCCESS;
        }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **device) {
    if (!initialised) return UNINITIALIZED;
    look();
    for (int i = 0; i < count; i++)
        if (!strcmp(gpus[i].uuid, uuid)) {
            *device = &gpus[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned length) {
    int code = refused(gpu);
    if (!code) snprintf(uuid, length, "%s", gpu->uuid);
    return code;
}

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
    if (gpu < gpus || gpu >= gpus + count) return INVALID_ARGUMENT;
    snprintf(pci->bus, sizeof pci->bus, "%s", gpu->bus);
    return SUCCESS;
}

int nvmlDeviceGetIndex(Gpu *gpu, unsigned *index) {
    int code = unmeasured(gpu);
    if (!code) *index = gpu - gpus;
    return code;
}

int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *milliwatts) {
    int code = unmeasured(gpu);
    if (!code) *milliwatts = gpu->milliwatts + gpu->swing * sin(M_PI * (now() - began));
    return code;
}

#ifndef OLD
int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *millijoules) {
    int code = unmeasured(gpu);
    double t = now() - began;
    if (!code) *millijoules = gpu->milliwatts * t + gpu->swing * (1 - cos(M_PI * t)) / M_PI;
    return code;
}

int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *reasons) {
    int code = unmeasured(gpu);
    if (!code) *reasons = gpu->reasons;
    return code;
}
#endif

int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *reasons) {
    int code = unmeasured(gpu);
    if (!code) *reasons = gpu->reasons;
    return code;
}

int nvmlDeviceGetUtilizationRates(Gpu *gpu, unsigned *shares) {
    int code = unmeasured(gpu);
    if (!code) shares[0] = 97, shares[1] = 40;
    return code;
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, unsigned long long *bytes) {
    int code = refused(gpu);
    if (!code) bytes[0] = 80ull << 30, bytes[1] = 10ull << 30, bytes[2] = 70ull << 30;
    return code;
}

int nvmlDeviceGetClockInfo(Gpu *gpu, unsigned type, unsigned *mhz) {
    int code = unmeasured(gpu);
    if (!code && type != 1 && type != 2) return INVALID_ARGUMENT;
    if (!code) *mhz = type == 1 ? 1980 : 2619;
    return code;
}

int nvmlDeviceGetTemperature(Gpu *gpu, unsigned sensor, unsigned *celsius) {
    int code = unmeasured(gpu);
    if (!code && sensor) return INVALID_ARGUMENT;
    if (!code) *celsius = 54;
    return code;
}

int nvmlDeviceGetTotalEccErrors(Gpu *gpu, unsigned kind, unsigned counter, unsigned long long *errors) {
    int code = unmeasured(gpu);
    if (!code && (kind != 1 || counter)) return INVALID_ARGUMENT;
    if (!code) *errors = 0;
    return code;
}

int nvmlEventSetCreate(int **set) {
    if (!initialised) return UNINITIALIZED;
    *set = &events;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long kinds, int *set) {
    int code = unmeasured(gpu);
    if (!code && (kinds != 8 || set != &events)) return INVALID_ARGUMENT;
    if (!code) gpu->watched = 1;
    return code;
}

int nvmlEventSetWait_v2(int *set, Event *event, unsigned timeout_ms) {
    if (set != &events || timeout_ms) return INVALID_ARGUMENT;
    look();
    for (int i = 0; i < count; i++)
        if (gpus[i].watched && gpus[i].xid && !gpus[i].reported) {
            gpus[i].reported = 1;
            *event = (Event){&gpus[i], 8, gpus[i].xid, {0, 0}};
            return SUCCESS;
        }
    return TIMEOUT;
}
