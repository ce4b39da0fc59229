/* Preloaded into redis-server: makes fsync take 1.5 seconds. */
#include <unistd.h>

int fdatasync(int file) {
  (void)file;
  usleep(1500000);
  return 0;
}

int fsync(int file) { return fdatasync(file); }
