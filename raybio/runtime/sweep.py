"""A sweep, seen from the driver: many trials of one system, which Ray Tune starts and stops, and what they found.

    sweeps/NAME/
        sweep.json          what must not change between two starts: space, base configuration, store
        trials/trial-.../   each trial's folder, as any run's
        best.yaml           the winner's whole configuration, for the system's own job
        result.json         the leaderboard; also as leaderboard.csv

A sweep that is started again goes on from its trials' folders alone (``trial``), never from Tune's own snapshot.
"""
